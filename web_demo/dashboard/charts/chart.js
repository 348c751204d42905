/**
 * uPlot charts in the page's colour scheme and at the size of their container. Each has a text
 * alternative with the same figures.
 */

import { write } from '../renderer.js';

/**
 * @typedef {import('../../vendor/uplot/uPlot.js')} Plot
 * @typedef {import('../../vendor/uplot/uPlot.js').Options} PlotOptions
 * @typedef {import('../../vendor/uplot/uPlot.js').AlignedData} PlotData
 * @typedef {import('../../vendor/uplot/uPlot.js').Series.PathBuilder} PathBuilder
 * @typedef {(name: string) => string} Colour of a variable of the style
 * @typedef {Omit<PlotOptions, 'width' | 'height'>} Look
 */

const { uPlot } =
  /** @type {{uPlot: typeof import('../../vendor/uplot/uPlot.js')}} */ (
    /** @type {unknown} */ (globalThis)
  );

const CLOCK = new Intl.DateTimeFormat('en-GB', { timeStyle: 'short' });
const DAYS = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' });

const FONT = '12px system-ui, sans-serif';

export class Chart {
  /**
   * @param {HTMLElement} place container with a fixed height
   * @param {import('../renderer.js').Renderer} renderer
   * @param {(colour: Colour) => Look} look called again when the colour scheme changes
   */
  constructor(place, renderer, look) {
    /** @private */
    this.place = place;
    /** @private */
    this.renderer = renderer;
    /** @private */
    this.look = look;
    /** @private @type {Plot | null} */
    this.plot = null;
    /** @private @type {PlotData | null} */
    this.data = null;
    /** @private */
    this.label = '';
    /** @private */
    this.isInSight = false;
    /** @private */
    this.draw = () => this.drawNow();
    place.setAttribute('role', 'img');
    new ResizeObserver(() => renderer.want(this.draw)).observe(place);
    new IntersectionObserver(
      (entries) => {
        this.isInSight = entries[entries.length - 1].isIntersecting;
        renderer.want(this.draw);
      },
      { rootMargin: '200px' },
    ).observe(place);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.rebuild());
  }

  /**
   * @param {PlotData | null} data null: no data
   * @param {string} label text alternative
   */
  set(data, label) {
    this.data = data;
    this.label = label;
    this.renderer.want(this.draw);
  }

  /** Redraw with another look. */
  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    this.renderer.want(this.draw);
  }

  /** @private */
  drawNow() {
    const { place, data } = this;
    if (this.label && place.getAttribute('aria-label') !== this.label) {
      place.setAttribute('aria-label', this.label);
    }
    place.toggleAttribute('data-empty', data === null);
    const size = { width: place.clientWidth, height: place.clientHeight };
    if (data === null || size.width === 0) {
      this.plot?.destroy();
      this.plot = null;
      return;
    }
    if (!this.isInSight) return;
    if (this.plot === null) {
      this.plot = new uPlot({ ...this.look(colourOf), ...size }, data, place);
      return;
    }
    if (this.plot.width !== size.width || this.plot.height !== size.height) this.plot.setSize(size);
    if (this.plot.data !== data) this.plot.setData(data);
  }
}

/** @type {Colour} */
function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * @param {Colour} colour
 * @returns {PlotOptions['axes'] & object}
 */
export function axes(colour) {
  const plain = {
    stroke: colour('ink-pale'),
    font: FONT,
    grid: { stroke: colour('line'), width: 1 },
    ticks: { show: false },
  };
  return [
    { ...plain, size: 28, gap: 6, grid: { show: false } },
    { ...plain, size: 56, gap: 6 },
  ];
}

const DAY_S = 86_400;

/**
 * Labels of a time axis in the local time zone: days when they are far apart.
 * @type {import('../../vendor/uplot/uPlot.js').Axis.DynamicValues}
 */
export function moments(_plot, splits, _axis, _space, stepS) {
  const format = stepS >= DAY_S ? DAYS : CLOCK;
  return splits.map((seconds) => format.format(seconds * 1000));
}

/**
 * Draw a horizontal or vertical line with a label at its end.
 * @param {Plot} plot
 * @param {{x?: number, y?: number, text: string, colour: string, row?: number, dash?: number[]}}
 *   line position on a scale; `row`: row of the label, from the top
 */
export function rule(plot, { x, y, text, colour, row = 0, dash = [] }) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const at = x === undefined ? plot.valToPos(y ?? 0, 'y', true) : plot.valToPos(x, 'x', true);
  const isUpright = x !== undefined;
  const start = isUpright ? bbox.left : bbox.top;
  const length = isUpright ? bbox.width : bbox.height;
  if (!(at >= start && at <= start + length)) return;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash(dash.map((part) => part * ratio));
  ctx.beginPath();
  if (isUpright) {
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
  } else {
    ctx.moveTo(bbox.left, at);
    ctx.lineTo(bbox.left + bbox.width, at);
  }
  ctx.stroke();
  ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = 'top';
  const wide = ctx.measureText(text).width + 8 * ratio;
  const isRight = isUpright ? at + wide > bbox.left + bbox.width : true;
  ctx.textAlign = isRight ? 'right' : 'left';
  const textX = isUpright ? at + (isRight ? -4 : 4) * ratio : bbox.left + bbox.width - 4 * ratio;
  const textY = isUpright ? bbox.top + (2 + 14 * row) * ratio : at + 4 * ratio;
  // An outline makes the label readable on bars.
  ctx.setLineDash([]);
  ctx.lineWidth = 4 * ratio;
  ctx.lineJoin = 'round';
  ctx.strokeStyle = colourOf('surface');
  ctx.strokeText(text, textX, textY);
  ctx.fillText(text, textX, textY);
  ctx.restore();
}

/**
 * Show the value under the pointer as text below the chart.
 * @param {HTMLElement} readout
 * @param {(index: number) => string} words
 * @returns {PlotOptions['hooks'] & object}
 */
export function showValueUnderPointer(readout, words) {
  return {
    setCursor: [
      (plot) => {
        const index = plot.cursor.idx;
        write(readout, index === null || index === undefined ? '' : words(index));
      },
    ],
  };
}

/**
 * Latency distribution, total and by stage: buckets on a logarithmic axis, with p50, p95, p99 and
 * the line at 500 ms.
 */

import { element } from '../../ui/dom.js';
import { BUDGET_MS, STAGE_NAMES } from '../../ui/stages.js';
import { axes, Chart, rule, showValueUnderPointer } from './chart.js';
import { count, milliseconds, plural } from '../data/format.js';
import { find, write } from '../renderer.js';
import { STAGES } from '../data/turn-row.js';

/**
 * @typedef {import('./chart.js').Plot} Plot
 * @typedef {[number, number][]} Buckets upper bound in ms, turns
 * @typedef {{p50: number | null, p95: number | null, p99: number | null}} Percentiles
 * @typedef {{spent_ms: Percentiles, exposed_ms: Percentiles}} StageSummary
 *
 * @typedef {object} Summary
 * @property {number} turns
 * @property {number} answered
 * @property {string} [measure]
 * @property {number | null} p50
 * @property {number | null} p95
 * @property {number | null} p99
 * @property {number} [openers]
 * @property {number | null} [cut_in_rate]
 * @property {[number, number] | null} [cut_in_interval] 95 %
 * @property {{cut_in: number, interrupted: number, reopened: number}} [outcomes] turns
 * @property {number | null} [within]
 * @property {Record<string, StageSummary>} [stages]
 *
 * @typedef {{e2e?: Buckets, stages?: Record<string, Buckets>}} Histograms
 */

export const WHOLE = 'e2e';

/** Left end of the axis: faster stages do not matter. */
const AXIS_START_MS = 1;

/** Maximum width of a bar when buckets are far apart. */
const MAX_BUCKET_RATIO = 1.6;

export class Distribution {
  /**
   * @param {HTMLElement} section
   * @param {import('../renderer.js').Renderer} renderer
   */
  constructor(section, renderer) {
    /** @private */
    this.renderer = renderer;
    /** @private */
    this.chosen = WHOLE;
    /** @private @type {Summary | null} */
    this.summary = null;
    /** Displayed data, for the export. @type {Histograms} */
    this.histograms = {};
    /** @private @type {Bars} */
    this.bars = { lowerMs: [], upperMs: [], turns: [] };
    /** @private */
    this.title = find(section, '.distribution-title');
    const readout = find(section, '.readout');
    /** @private */
    this.chart = new Chart(find(section, '.plot'), renderer, (colour) => ({
      ...look(() => this.bars, () => this.colourName()),
      axes: axes(colour).map((axis, index) =>
        index === 0
          ? {
              ...axis,
              splits: (plot) => decades(plot),
              filter: (_, at) => at,
              values: (_, at) => at.map(short),
            }
          : axis,
      ),
      hooks: {
        ...showValueUnderPointer(readout, (index) => this.wordsOf(index)),
        draw: [(plot) => this.drawLines(plot, colour)],
      },
    }));
    /** @private */
    this.rows = [WHOLE, ...STAGES].map((name) => new DistributionRow(name, renderer));
    const table = find(section, 'tbody');
    table.append(...this.rows.map((row) => row.element));
    table.addEventListener('click', (event) => {
      const button = /** @type {Element} */ (event.target).closest('button');
      if (button?.dataset.name) this.choose(button.dataset.name);
    });
    this.choose(WHOLE);
  }

  /**
   * @param {Summary} summary
   * @param {Histograms} histograms
   */
  set(summary, histograms) {
    this.summary = summary;
    this.histograms = histograms;
    for (const row of this.rows) row.set(percentilesOf(row.name, summary), this.bucketsOf(row.name));
    this.show();
  }

  /**
   * @private
   * @param {string} name
   */
  choose(name) {
    this.chosen = name;
    for (const row of this.rows) row.markChosen(row.name === name);
    write(this.title, name === WHOLE ? 'Wait for the answer' : `${STAGE_NAMES[name]}: waited for`);
    this.chart.rebuild();
    this.show();
  }

  /** @private */
  show() {
    if (this.summary === null) return;
    this.bars = barsOf(this.bucketsOf(this.chosen));
    const { p50, p95, p99 } = percentilesOf(this.chosen, this.summary).exposed;
    const turns = this.bars.turns.reduce((sum, each) => sum + each, 0);
    const name = this.chosen === WHOLE ? 'Wait for the answer' : STAGE_NAMES[this.chosen];
    const label =
      `${name}: distribution of ${plural(turns, 'turn')}; p50 ${milliseconds(p50)}, ` +
      `p95 ${milliseconds(p95)}, p99 ${milliseconds(p99)}; the line stands at ${BUDGET_MS} ms.`;
    this.chart.set(turns === 0 ? null : [this.bars.upperMs, this.bars.turns], label);
  }

  /**
   * @private
   * @param {string} name
   * @returns {Buckets}
   */
  bucketsOf(name) {
    return (name === WHOLE ? this.histograms.e2e : this.histograms.stages?.[name]) ?? [];
  }

  /** @private */
  colourName() {
    return this.chosen === WHOLE ? 'accent' : `stage-${this.chosen}`;
  }

  /**
   * @private
   * @param {number} index
   */
  wordsOf(index) {
    const { lowerMs, upperMs, turns } = this.bars;
    const stretch = `${milliseconds(lowerMs[index])} to ${milliseconds(upperMs[index])}`;
    return `${stretch}: ${plural(turns[index], 'turn')}`;
  }

  /**
   * @private
   * @param {Plot} plot
   * @param {import('./chart.js').Colour} colour
   */
  drawLines(plot, colour) {
    if (this.summary === null) return;
    const { p50, p95, p99 } = percentilesOf(this.chosen, this.summary).exposed;
    const soft = colour('ink-soft');
    const names = /** @type {[string, number | null][]} */ ([['p50', p50], ['p95', p95], ['p99', p99]]);
    names.forEach(([text, ms], index) => {
      if (ms !== null && ms >= AXIS_START_MS) {
        rule(plot, { x: ms, text, colour: soft, row: index + 1, dash: [3, 3] });
      }
    });
    rule(plot, { x: BUDGET_MS, text: `${BUDGET_MS} ms`, colour: colour('bad') });
  }
}

/** Row of the table: a click on its name selects it; its sparkline shares the axis of all rows. */
class DistributionRow {
  /**
   * @param {string} name
   * @param {import('../renderer.js').Renderer} renderer
   */
  constructor(name, renderer) {
    this.name = name;
    /** @private @type {Bars} */
    this.bars = barsOf([]);
    this.element = element('tr', '');
    const heading = element('th', '');
    heading.setAttribute('scope', 'row');
    /** @private */
    this.button = element('button', 'distribution-name');
    this.button.setAttribute('type', 'button');
    this.button.dataset.name = name;
    const dot = element('span', 'dot');
    if (name !== WHOLE) dot.dataset.stage = name;
    this.button.append(dot, name === WHOLE ? 'Whole wait' : STAGE_NAMES[name]);
    heading.append(this.button);
    const picture = element('td', 'small-plot');
    const place = element('div', 'plot');
    picture.append(place);
    /** @private */
    this.cells = ['p50', 'p95', 'p99', 'spent'].map(() => element('td', 'figure'));
    this.element.append(heading, picture, ...this.cells);
    /** @private */
    this.chart = new Chart(place, renderer, (colour) => ({
      ...look(() => this.bars, () => (name === WHOLE ? 'accent' : `stage-${name}`)),
      scales: { x: { time: false, distr: 3, range: [AXIS_START_MS, 3000] }, y: { range: fromZero } },
      axes: [{ show: false }, { show: false }],
      cursor: { show: false },
      hooks: { draw: [(plot) => rule(plot, { x: BUDGET_MS, text: '', colour: colour('bad') })] },
    }));
  }

  /**
   * @param {{exposed: Percentiles, spent: Percentiles | null}} percentiles
   * @param {Buckets} buckets
   */
  set({ exposed, spent }, buckets) {
    const figures = [exposed.p50, exposed.p95, exposed.p99].map(milliseconds);
    const all = [...figures, spent === null ? '' : milliseconds(spent.p50)];
    this.cells.forEach((cell, index) => write(cell, all[index]));
    this.bars = barsOf(buckets);
    const { upperMs, turns } = this.bars;
    const label = `Distribution; p50 ${figures[0]}, p95 ${figures[1]}, p99 ${figures[2]}`;
    this.chart.set(turns.some((each) => each > 0) ? [upperMs, turns] : null, label);
  }

  /** @param {boolean} isChosen */
  markChosen(isChosen) {
    this.button.setAttribute('aria-pressed', String(isChosen));
  }
}

/** @typedef {{lowerMs: number[], upperMs: number[], turns: number[]}} Bars */

/**
 * Lower bounds of the buckets: the server sends only those that are not empty. Turns without a wait
 * are not on the axis.
 * @param {Buckets} all
 * @returns {Bars}
 */
function barsOf(all) {
  const buckets = all.filter(([upper]) => upper > 0);
  const upperMs = buckets.map(([upper]) => Math.max(upper, AXIS_START_MS));
  const ratios = upperMs.slice(1).map((upper, index) => upper / upperMs[index]);
  const ratio = Math.min(MAX_BUCKET_RATIO, ...ratios.filter((each) => each > 1.01));
  const lowerMs = upperMs.map((upper) => Math.max(AXIS_START_MS / ratio, upper / ratio));
  return { lowerMs, upperMs, turns: buckets.map(([, turns]) => turns) };
}

/**
 * @param {string} name
 * @param {Summary} summary
 * @returns {{exposed: Percentiles, spent: Percentiles | null}}
 */
function percentilesOf(name, summary) {
  if (name === WHOLE) return { exposed: summary, spent: null };
  const none = { p50: null, p95: null, p99: null };
  const stage = summary.stages?.[name];
  return { exposed: stage?.exposed_ms ?? none, spent: stage?.spent_ms ?? none };
}

/**
 * Bars as wide as their buckets.
 * @param {() => Bars} bars
 * @param {() => string} colourName
 * @returns {import('./chart.js').Look}
 */
function look(bars, colourName) {
  /** @type {import('./chart.js').PathBuilder} */
  const paths = (plot) => {
    const { lowerMs, upperMs, turns } = bars();
    const shape = new Path2D();
    const ground = plot.valToPos(0, 'y', true);
    turns.forEach((number, index) => {
      const left = plot.valToPos(lowerMs[index], 'x', true);
      const top = plot.valToPos(number, 'y', true);
      const width = plot.valToPos(upperMs[index], 'x', true) - left;
      shape.rect(left, top, Math.max(1, width - devicePixelRatio), ground - top);
    });
    return { fill: shape, stroke: null };
  };
  return {
    legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { setScale: false, x: false } },
    scales: { x: { time: false, distr: 3, range: wideEnough }, y: { range: fromZero } },
    series: [
      {},
      {
        paths,
        points: { show: false },
        fill: () =>
          getComputedStyle(document.documentElement).getPropertyValue(`--${colourName()}`).trim(),
      },
    ],
  };
}

/**
 * Range that always contains the line at 500 ms.
 * @param {Plot} _
 * @param {number} lowMs
 * @param {number} highMs
 * @returns {[number, number]}
 */
function wideEnough(_, lowMs, highMs) {
  return [Math.max(AXIS_START_MS, Math.min(lowMs / 1.3, 100)), Math.max(highMs * 1.15, 900)];
}

/**
 * @param {Plot} _
 * @param {number} _low
 * @param {number} high
 * @returns {[number, number]}
 */
function fromZero(_, _low, high) {
  return [0, Math.max(1, high * 1.1)];
}

/** @param {Plot} plot */
function decades(plot) {
  const [low, high] = [plot.scales.x.min ?? 1, plot.scales.x.max ?? 1000];
  const marks = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000];
  const found = marks.filter((each) => each >= low && each <= high);
  return found.length > 7 ? found.filter((each) => /^[15]/.test(String(each))) : found;
}

/** @param {number} ms */
function short(ms) {
  return ms >= 1000 ? `${ms / 1000} s` : count(ms);
}

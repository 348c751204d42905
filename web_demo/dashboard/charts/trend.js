/**
 * Share of turns within budget over time, and the burn rates of the target: those that
 * `latency_budget/monitoring/alerts.yml` alerts on.
 */

import { element } from '../../ui/dom.js';
import { axes, Chart, moments, rule, showValueUnderPointer } from './chart.js';
import { dayAndTime, NONE, percent, plural } from '../data/format.js';
import { find, write } from '../renderer.js';

/**
 * @typedef {import('./distribution.js').Summary} Summary
 * @typedef {{since: string, until: string, summary: Summary}} Window
 * @typedef {{within: number | null, answered: number}} Share
 */

/**
 * Both windows of an alert must exceed its rate: the long one shows that it matters, the short one
 * that it continues.
 */
const ALERTS = [
  { name: 'Fast burn', rate: 14.4, windows: ['1h', '5m'], advice: 'the month’s allowance is gone in two days' },
  { name: 'Slow burn', rate: 6, windows: ['6h', '30m'], advice: 'the month’s allowance is gone in five days' },
];

const WINDOW_NAMES = { '5m': '5 minutes', '30m': '30 minutes', '1h': '1 hour', '6h': '6 hours' };

/** Right end of the burn-rate bars. */
const AXIS_RATE = 20;

export class Trend {
  /**
   * @param {HTMLElement} section
   * @param {import('../renderer.js').Renderer} renderer
   */
  constructor(section, renderer) {
    /** @private @type {HTMLSelectElement} */
    this.target = find(section, '#target');
    /** @private @type {Window[]} */
    this.windows = [];
    /** @private @type {Record<string, Share>} */
    this.shares = {};
    /** @private */
    this.verdict = find(section, '.burn-verdict');
    /** @private */
    this.bars = Object.entries(WINDOW_NAMES).map(([name, words]) => new BurnBar(name, words));
    find(section, '.burn-bars').append(...this.bars.map((bar) => bar.element));
    const readout = find(section, '.readout');
    /** @private */
    this.chart = new Chart(find(section, '.plot'), renderer, (colour) => ({
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false, x: false } },
      scales: { y: { range: (_, low) => [Math.min(this.targetShare - 0.04, low - 0.02), 1.005] } },
      series: [
        {},
        { stroke: colour('accent'), width: 2, points: { size: 5, fill: colour('accent') } },
      ],
      axes: axes(colour).map((axis, index) =>
        index === 0
          ? { ...axis, values: moments }
          : { ...axis, values: (_, at) => at.map((each) => percent(each)) },
      ),
      hooks: {
        ...showValueUnderPointer(readout, (index) => wordsOf(this.windows[index])),
        draw: [
          (plot) =>
            rule(plot, {
              y: this.targetShare,
              text: `target ${percent(this.targetShare)}`,
              colour: colour('bad'),
              dash: [5, 4],
            }),
        ],
      },
    }));
    this.target.addEventListener('change', () => {
      this.chart.rebuild();
      this.showBurn();
    });
    this.showBurn();
  }

  /** @private */
  get targetShare() {
    return Number(this.target.value);
  }

  /** @param {Window[] | null} windows oldest first; null when the server keeps no history */
  setWindows(windows) {
    this.windows = (windows ?? []).filter(({ since }) => !Number.isNaN(Date.parse(since)));
    const shares = this.windows.map(({ summary }) => (summary.answered ? (summary.within ?? null) : null));
    const known = shares.filter((share) => share !== null);
    const times = this.windows.map(({ since }) => Date.parse(since) / 1000);
    const label =
      known.length === 0
        ? 'Share within budget over time: no turns.'
        : `Share within budget over time, ${plural(known.length, 'stretch', 'stretches')}: ` +
          `lowest ${percent(Math.min(...known))}, latest ${percent(known[known.length - 1])}.`;
    this.chart.set(known.length === 0 ? null : [times, shares], label);
  }

  /** @param {Record<string, Share>} shares of the windows of BURN_WINDOWS */
  setBurn(shares) {
    this.shares = shares;
    this.showBurn();
  }

  /** @private */
  showBurn() {
    const allowed = 1 - this.targetShare;
    const rates = Object.fromEntries(
      this.bars.map((bar) => [bar.name, burnRate(this.shares[bar.name], allowed)]),
    );
    for (const bar of this.bars) bar.set(rates[bar.name]);
    const alert = ALERTS.find(({ rate, windows }) =>
      windows.every((name) => (rates[name] ?? 0) > rate),
    );
    const isKnown = Object.values(rates).some((rate) => rate !== null);
    this.verdict.dataset.mood = alert ? 'alarm' : isKnown ? 'well' : 'none';
    if (alert) write(this.verdict, `${alert.name}: at this pace ${alert.advice}.`);
    else write(this.verdict, isKnown ? 'No alert: late turns stay within what is allowed.' : 'No turns in the last hours.');
  }
}

/**
 * @param {Share | undefined} share
 * @param {number} allowed share of turns that may be late
 * @returns {number | null} 1: exactly the allowed rate
 */
export function burnRate(share, allowed) {
  if (!share?.answered || share.within === null || share.within === undefined) return null;
  return (1 - share.within) / allowed;
}

/** @param {Window | undefined} window */
function wordsOf(window) {
  if (window === undefined) return '';
  const { answered, within } = window.summary;
  const since = dayAndTime(Date.parse(window.since));
  return `From ${since}: ${percent(within)} of ${plural(answered, 'turn')} within budget`;
}

/** Burn rate of one window, with the rates at which it alerts. */
class BurnBar {
  /**
   * @param {string} name
   * @param {string} words
   */
  constructor(name, words) {
    this.name = name;
    this.element = element('li', '');
    /** @private */
    this.value = element('span', 'burn-value', NONE);
    const track = element('span', 'burn-track');
    /** @private */
    this.bar = element('span', 'burn-bar');
    const limit = element('span', 'limit');
    /** @private */
    this.limitRate = ALERTS.find(({ windows }) => windows.includes(name))?.rate ?? AXIS_RATE;
    limit.style.left = `${(100 * this.limitRate) / AXIS_RATE}%`;
    limit.title = `Alerts above ${this.limitRate}`;
    track.append(this.bar, limit);
    this.element.append(element('span', 'burn-name', words), track, this.value);
  }

  /** @param {number | null} rate */
  set(rate) {
    write(this.value, rate === null ? NONE : `${rate.toFixed(1)}×`);
    this.bar.style.width = `${(100 * Math.min(rate ?? 0, AXIS_RATE)) / AXIS_RATE}%`;
    this.bar.toggleAttribute('data-over', rate !== null && rate > this.limitRate);
  }
}

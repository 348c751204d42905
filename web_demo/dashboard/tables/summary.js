/** Row of summary figures at the top. */

import { BUDGET_MS } from '../../ui/stages.js';
import { count, milliseconds, percent, plural } from '../data/format.js';
import { find, write } from '../renderer.js';

/** @typedef {import('../charts/distribution.js').Summary} Summary */

/** Right end of the small scales beside the percentiles. */
const AXIS_MS = 1000;

export class SummaryRow {
  /**
   * @param {HTMLElement} list
   * @param {import('../renderer.js').Renderer} renderer
   */
  constructor(list, renderer) {
    /** @private */
    this.list = list;
    /** @private */
    this.renderer = renderer;
    /** @private @type {Summary | null} */
    this.summary = null;
    /** @private @type {number | null} */
    this.calls = null;
    /** @private @type {number | null} */
    this.refused = null;
    /** @private */
    this.draw = () => this.drawNow();
  }

  /** @param {Summary} summary */
  setSummary(summary) {
    this.summary = summary;
    this.renderer.want(this.draw);
  }

  /** @param {number} calls now */
  setCalls(calls) {
    this.calls = calls;
    this.renderer.want(this.draw);
  }

  /** @param {number | null} refused */
  setRefused(refused) {
    this.refused = refused;
    this.renderer.want(this.draw);
  }

  /** @private */
  drawNow() {
    const { summary, list } = this;
    this.figure('calls', count(this.calls));
    this.figure('refused', count(this.refused));
    find(list, '[data-figure="refused"]').toggleAttribute('data-some', (this.refused ?? 0) > 0);
    if (summary === null) return;
    list.removeAttribute('aria-busy');
    this.figure('within', percent(summary.within), `of ${plural(summary.answered, 'answered turn')}`);
    this.figure('cut_in', percent(summary.cut_in_rate), outcomes(summary));
    for (const name of /** @type {('p50' | 'p95' | 'p99')[]} */ (['p50', 'p95', 'p99'])) {
      const ms = summary[name];
      this.figure(name, milliseconds(ms));
      const tile = find(list, `[data-figure="${name}"]`);
      tile.dataset.verdict = ms === null ? 'none' : ms <= BUDGET_MS ? 'within' : 'over';
      find(tile, '.scale-bar').style.width = `${Math.min(100, (100 * (ms ?? 0)) / AXIS_MS)}%`;
    }
    const where = summary.measure === 'e2e_ear_ms' ? 'at the caller’s ear' : 'at the server';
    for (const note of list.querySelectorAll('.measure')) write(note, where);
  }

  /**
   * @private
   * @param {string} name
   * @param {string} value
   * @param {string} [note]
   */
  figure(name, value, note) {
    const tile = find(this.list, `[data-figure="${name}"]`);
    write(find(tile, '.value'), value);
    if (note !== undefined) write(find(tile, '.note'), note);
  }
}

/**
 * The interval of the rate, and the other turns in which the caller spoke over the reply.
 * @param {Summary} summary
 */
function outcomes({ cut_in_interval: interval, outcomes: turns }) {
  const words = [];
  if (interval) words.push(`95 %: ${percent(interval[0])} to ${percent(interval[1])}`);
  if (turns) words.push(`${count(turns.interrupted)} interrupted`);
  if (turns) words.push(`${count(turns.reopened)} re-opened unanswered`);
  return words.join(', ');
}

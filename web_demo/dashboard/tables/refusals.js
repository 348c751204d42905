/** Rejected calls: time, reason, and number of calls in progress. */

import { element } from '../../ui/dom.js';
import { count, dayAndTime, plural } from '../data/format.js';
import { find, write } from '../renderer.js';

/** @typedef {{at: string | null, code: string, calls: number | null}} Refusal */

/** Maximum number that the server sends. */
const MAX_KEPT = 200;
const MAX_SHOWN = 50;

export class Refusals {
  /**
   * @param {HTMLElement} section
   * @param {import('../renderer.js').Renderer} renderer
   * @param {(total: number | null) => void} onTotal
   */
  constructor(section, renderer, onTotal) {
    /** @private */
    this.section = section;
    /** @private */
    this.renderer = renderer;
    /** @private */
    this.onTotal = onTotal;
    /** @private @type {Refusal[]} newest first */
    this.kept = [];
    /** @private @type {number | null} since the server's start */
    this.total = null;
    /** @private */
    this.draw = () => this.drawNow();
  }

  /** @param {{refusals: Refusal[], total: number}} answer */
  set({ refusals, total }) {
    const times = refusals.map(({ at }) => Date.parse(at ?? ''));
    const isOldestFirst = times.length > 1 && times[0] < times[times.length - 1];
    this.kept = (isOldestFirst ? refusals.toReversed() : refusals).slice(0, MAX_KEPT);
    this.changed(total);
  }

  /** @param {Refusal} refusal */
  add(refusal) {
    this.kept = [refusal, ...this.kept].slice(0, MAX_KEPT);
    this.changed((this.total ?? 0) + 1);
  }

  /**
   * @private
   * @param {number | null} total
   */
  changed(total) {
    this.total = total;
    this.onTotal(total);
    this.renderer.want(this.draw);
  }

  /** @private */
  drawNow() {
    const shown = this.kept.slice(0, MAX_SHOWN);
    find(this.section, 'table').hidden = shown.length === 0;
    find(this.section, '.empty').hidden = shown.length > 0;
    find(this.section, 'tbody').replaceChildren(...shown.map(lineOf));
    const total = this.total ?? 0;
    write(find(this.section, '.section-note'), `${plural(total, 'caller')} since the server’s start`);
  }
}

/** @param {Refusal} refusal */
function lineOf({ at, code, calls }) {
  const atMs = Date.parse(at ?? '');
  const line = element('tr', '');
  const name = element('td', '');
  name.append(element('code', '', code));
  line.append(
    element('td', '', dayAndTime(Number.isNaN(atMs) ? null : atMs)),
    name,
    element('td', 'figure', count(calls)),
  );
  return line;
}

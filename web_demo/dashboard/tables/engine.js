/** Figures of the language model's engine, sent every second, and of speculative replies. */

import { count, milliseconds, NONE, percent, plural } from '../data/format.js';
import { find, write } from '../renderer.js';

/**
 * Counters count from the server's start.
 * @typedef {object} EngineState
 * @property {number | null} [time_to_first_token_p50_ms]
 * @property {number | null} [time_to_first_token_p95_ms]
 * @property {number | null} [inter_token_p50_ms]
 * @property {number | null} [inter_token_p95_ms]
 * @property {number | null} [inter_token_p99_ms]
 * @property {number} [waiting]
 * @property {number} [replying]
 * @property {number} [pages_used]
 * @property {number} [pages_total]
 * @property {number} [page_tokens]
 * @property {number} [prompt_tokens]
 * @property {number} [cached_tokens]
 * @property {number} [output_tokens]
 * @property {number} [drafted_tokens]
 * @property {number} [accepted_tokens]
 * @property {{made?: number, used?: number, dropped?: number, wasted_ms?: number}} [guesses]
 */

/** Ten minutes. */
const MAX_POINTS = 600;

/**
 * Limit of used pages: above it idle calls lose their cache, and their next turn prefills
 * everything.
 */
export const PAGES_LINE = 0.85;

export class Engine {
  /**
   * @param {HTMLElement} section
   * @param {HTMLElement} guesses
   * @param {import('../renderer.js').Renderer} renderer
   */
  constructor(section, guesses, renderer) {
    /** @private */
    this.section = section;
    /** @private */
    this.guesses = guesses;
    /** @private */
    this.renderer = renderer;
    /** @private @type {EngineState | null} */
    this.state = null;
    /** @private @type {{openers?: number, answered: number} | null} */
    this.summary = null;
    /** Share of pages in use, with seconds since 1970. @type {[number[], number[]]} */
    this.pages = [[], []];
    /** @type {() => void} */
    this.onPages = () => {};
    /** @private */
    this.draw = () => this.drawNow();
  }

  /**
   * @param {EngineState} state
   * @param {number} nowMs
   */
  set(state, nowMs) {
    this.state = state;
    const [times, shares] = this.pages;
    const seconds = nowMs / 1000;
    if (state.pages_total && !(seconds <= times[times.length - 1])) {
      const from = times.length >= MAX_POINTS ? 1 : 0;
      this.pages = [
        [...times.slice(from), seconds],
        [...shares.slice(from), (state.pages_used ?? 0) / state.pages_total],
      ];
      this.onPages();
    } else if (seconds < times[times.length - 1]) {
      this.pages = [[], []]; // the clock was set back
    }
    this.renderer.want(this.draw);
  }

  /** @param {{openers?: number, answered: number}} summary */
  setSummary(summary) {
    this.summary = summary;
    this.renderer.want(this.draw);
  }

  /** @private */
  drawNow() {
    this.drawGuesses();
    const state = this.state;
    find(this.section, '.empty').hidden = state !== null;
    find(this.section, '.engine-body').hidden = state === null;
    if (state === null) return;
    const share = state.pages_total ? (state.pages_used ?? 0) / state.pages_total : null;
    /** @type {Record<string, string>} */
    const figures = {
      itl: milliseconds(state.inter_token_p50_ms),
      itl_slow: `p95 ${milliseconds(state.inter_token_p95_ms)} · p99 ${milliseconds(state.inter_token_p99_ms)}`,
      ttft: milliseconds(state.time_to_first_token_p50_ms),
      ttft_slow: `p95 ${milliseconds(state.time_to_first_token_p95_ms)}`,
      pages: percent(share),
      pages_of: `${count(state.pages_used)} of ${count(state.pages_total)}${
        state.page_tokens ? `, ${count(state.page_tokens)} tokens each` : ''
      }`,
      prefix: ratio(state.cached_tokens, state.prompt_tokens),
      prefix_of: `of ${count(state.prompt_tokens)} prompt tokens`,
      drafts: ratio(state.accepted_tokens, state.drafted_tokens),
      drafts_of: `of ${count(state.drafted_tokens)} drafted tokens`,
      queue: count(state.waiting),
      queue_of: `${count(state.replying)} replying`,
    };
    for (const [name, text] of Object.entries(figures)) this.write(this.section, name, text);
    find(this.section, '[data-name="pages"]').toggleAttribute('data-over', (share ?? 0) > PAGES_LINE);
  }

  /** @private */
  drawGuesses() {
    const { made, used, dropped, wasted_ms: wasted } = this.state?.guesses ?? {};
    const { openers, answered } = this.summary ?? {};
    /** @type {Record<string, string>} */
    const figures = {
      used: ratio(used, made),
      used_of: made === undefined ? NONE : `${count(used)} of ${plural(made, 'guess', 'guesses')}`,
      dropped: count(dropped),
      wasted: milliseconds(wasted),
      wasted_of: made && wasted !== undefined ? `${milliseconds(wasted / made)} a guess` : NONE,
      openers: ratio(openers, answered),
      openers_of: openers === undefined ? NONE : `${count(openers)} of ${plural(answered ?? 0, 'answer')}`,
    };
    for (const [name, text] of Object.entries(figures)) this.write(this.guesses, name, text);
    const bar = find(this.guesses, '.guess-bar');
    bar.hidden = !made;
    if (!made) return;
    find(bar, '.used').style.width = `${(100 * (used ?? 0)) / made}%`;
    find(bar, '.dropped').style.width = `${(100 * (dropped ?? 0)) / made}%`;
  }

  /**
   * @private
   * @param {HTMLElement} section
   * @param {string} name
   * @param {string} text
   */
  write(section, name, text) {
    write(find(section, `[data-name="${name}"]`), text);
  }
}

/**
 * @param {number | undefined} part
 * @param {number | undefined} whole
 */
function ratio(part, whole) {
  return whole ? percent((part ?? 0) / whole) : NONE;
}

/**
 * Timeline of a call's running turn: the work of each stage since the caller's last word, and the
 * line at 500 ms. The latency stays visible after the turn.
 *
 * Marks have the server's monotonic time. The least delayed one gives the offset to the page's
 * clock, so that the edge of the active stage moves between marks.
 */

import { element } from '../../ui/dom.js';
import { BUDGET_MS, STAGE_NAMES } from '../../ui/stages.js';
import { milliseconds } from '../data/format.js';
import { write } from '../renderer.js';

/** Start and end mark of each stage. @type {[string, string, string][]} */
const WORK = [
  ['endpoint', 'caller_last_voiced', 'endpoint'],
  ['asr', 'asr_start', 'asr_final'],
  ['llm_prefill', 'reply_requested', 'llm_first_token'],
  ['llm_clause', 'llm_first_token', 'first_piece'],
  ['tool', 'tool_start', 'tool_done'],
  ['tts', 'tts_start', 'first_audible_ready'],
  ['pacing', 'pace_start', 'pace_end'],
  ['transport', 'released', 'heard'],
];

/** Marks that a discarded reply invalidates. */
const OF_REPLY = [
  'reply_requested',
  'llm_first_token',
  'first_piece',
  'tts_start',
  'tts_first_chunk',
  'first_audible_ready',
];

/** Right ends of the axis: it grows in steps. */
const AXES_MS = [750, 1500, 3000, 6000, 12_000];

export class CallTimeline {
  /** @param {import('../renderer.js').Renderer} renderer */
  constructor(renderer) {
    /** @private */
    this.renderer = renderer;
    /** @private */
    this.turn = -1;
    /** @private @type {Map<string, number>} when, on the server's clock, by name */
    this.marks = new Map();
    /** @private ms from the server's clock to this page's; the least delayed mark */
    this.offsetMs = Number.POSITIVE_INFINITY;
    /** @private */
    this.isRunning = false;
    /** @private */
    this.axisMs = AXES_MS[0];
    this.element = element('div', 'timeline');
    this.element.setAttribute('role', 'img');
    this.element.setAttribute('aria-label', 'No turn yet');
    /** @private */
    this.bars = WORK.map(([stage], index) => {
      const bar = element('span', 'timeline-bar');
      bar.dataset.stage = stage;
      bar.style.top = `${(100 * index) / WORK.length}%`;
      bar.style.height = `${100 / WORK.length}%`;
      return bar;
    });
    /** @private */
    this.limit = element('span', 'limit');
    /** @private */
    this.words = element('span', 'timeline-text');
    this.element.append(...this.bars, this.limit, this.words);
    /** @private */
    this.draw = () => this.drawNow();
    renderer.want(this.draw);
  }

  /**
   * @param {{turn: number, name: string, at_ms: number}} mark
   * @param {number} nowMs of this page's own clock
   */
  mark({ turn, name, at_ms }, nowMs) {
    if (turn < this.turn) return;
    if (turn > this.turn) {
      this.turn = turn;
      this.marks.clear();
      this.isRunning = true;
      this.axisMs = AXES_MS[0];
    }
    this.offsetMs = Math.min(this.offsetMs, nowMs - at_ms);
    if (name === 'discarded') for (const each of OF_REPLY) this.marks.delete(each);
    this.marks.set(name, at_ms);
    if (name === 'released' || name === 'reply_done') this.isRunning = false;
    this.renderer.want(this.draw);
  }

  /** @param {import('../data/turn-row.js').Turn} turn that is over */
  end(turn) {
    if (turn.turn < this.turn) return;
    this.isRunning = false;
    const waitMs = turn.e2e_ear_ms ?? turn.e2e_server_ms ?? null;
    write(this.words, waitMs === null ? '' : milliseconds(waitMs));
    this.words.dataset.verdict = waitMs !== null && waitMs > BUDGET_MS ? 'over' : 'within';
    const said = waitMs === null ? 'without a time' : `in ${milliseconds(waitMs)}`;
    this.element.setAttribute('aria-label', `Turn ${turn.turn} answered ${said}`);
    this.renderer.want(this.draw);
  }

  stop() {
    this.isRunning = false;
  }

  /** @private */
  drawNow() {
    const originMs = this.marks.get('caller_last_voiced') ?? this.marks.get('reply_requested');
    this.limit.style.left = `${(100 * BUDGET_MS) / this.axisMs}%`;
    this.element.toggleAttribute('data-running', this.isRunning && originMs !== undefined);
    if (originMs === undefined) {
      for (const bar of this.bars) bar.style.width = '0';
      return;
    }
    const nowMs = performance.now() - this.offsetMs;
    let lastMs = originMs;
    const spans = WORK.map(([stage, first, last]) => {
      const startMs = this.marks.get(first);
      if (startMs === undefined) return null;
      const doneMs = this.marks.get(last);
      const isOpen = doneMs === undefined || doneMs < startMs;
      if (isOpen && (!this.isRunning || stage === 'transport')) return null;
      const endMs = isOpen ? Math.max(nowMs, startMs) : doneMs;
      lastMs = Math.max(lastMs, endMs);
      return [startMs - originMs, endMs - originMs];
    });
    const lengthMs = lastMs - originMs;
    this.axisMs = AXES_MS.find((each) => lengthMs < 0.97 * each) ?? AXES_MS[AXES_MS.length - 1];
    spans.forEach((span, index) => this.place(this.bars[index], span));
    if (this.isRunning) {
      write(this.words, '');
      this.element.setAttribute('aria-label', this.said());
      // A turn longer than the axis is not animated.
      if (lengthMs < AXES_MS[AXES_MS.length - 1]) this.renderer.want(this.draw);
    }
  }

  /**
   * @private
   * @param {HTMLElement} bar
   * @param {number[] | null} span from the caller's last word
   */
  place(bar, span) {
    const [start, end] = span === null ? [0, 0] : span.map((ms) => Math.max(0, ms));
    bar.style.left = `${(100 * start) / this.axisMs}%`;
    bar.style.width = `${(100 * Math.max(0, Math.min(end, this.axisMs) - start)) / this.axisMs}%`;
  }

  /** @private */
  said() {
    const open = WORK.filter(([, first, last]) => this.marks.has(first) && !this.marks.has(last));
    const names = open.map(([stage]) => STAGE_NAMES[stage]);
    return `Turn ${this.turn} runs${names.length ? `: ${names.join(', ')}` : ''}`;
  }
}

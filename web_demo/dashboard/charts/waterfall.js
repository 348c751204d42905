/**
 * Waterfall of one turn: a row for each stage. Solid bars are exposed time, which the caller waited
 * for; pale bars are work hidden behind another stage or behind the caller's own speech; the line
 * is the turn's budget. Marks are ticks at the top, selected by pointer or arrow keys.
 */

import { element } from '../../ui/dom.js';
import { STAGE_NAMES } from '../../ui/stages.js';
import { milliseconds } from '../data/format.js';
import { write } from '../renderer.js';
import { rowOf, STAGES } from '../data/turn-row.js';
import { MARKS } from '../data/labels.js';

/**
 * @typedef {import('../data/turn-row.js').Turn} Turn
 * @typedef {import('../data/turn-row.js').Span} Span
 * @typedef {{name: string, ms: number}} Mark
 */

/** Earliest displayed time before the caller's last word; longer bars begin at the left edge. */
const MOST_BEFORE_MS = 400;

/** Minimum duration of a displayed stage. */
const DRAWN_MS = 0.05;

const HINT = 'The ticks are marks: point at them, or go through them with the arrow keys.';

/**
 * @param {Turn} turn
 * @returns {HTMLElement}
 */
export function waterfall(turn) {
  const { waitMs, budgetMs } = rowOf(turn);
  const spans = turn.waterfall?.spans ?? [];
  const marks = [...(turn.marks ?? [])].sort((first, second) => first.ms - second.ms);
  const starts = [...spans.map(({ start_ms }) => start_ms), ...marks.map(({ ms }) => ms)];
  const fromMs = Math.max(Math.min(0, ...starts), -MOST_BEFORE_MS) * 1.04;
  const toMs = Math.max(waitMs ?? 0, budgetMs, ...spans.map(({ end_ms }) => end_ms)) * 1.04;
  const scale = new Scale(fromMs, toMs);
  const drawing = element('div', 'waterfall');
  const whole = element('div', 'waterfall-box');
  whole.append(drawing);
  const cursor = element('span', 'cursor');
  cursor.hidden = true;
  const rows = STAGES.filter((stage) => isDrawn(turn, stage)).map((stage) => stageRow(turn, stage, scale));
  const rules = element('div', 'rules');
  rules.setAttribute('aria-hidden', 'true');
  rules.append(
    upright(scale, 0, 'rule-origin', 'last word'),
    upright(scale, budgetMs, 'rule-budget', `${Math.round(budgetMs)} ms`),
    cursor,
  );
  const heads = element('span', 'times-head', 'waited · worked');
  heads.setAttribute('aria-hidden', 'true');
  drawing.append(rules, heads);
  const strip = marks.length > 0 ? new MarkStrip(marks, scale, cursor) : null;
  drawing.append(strip?.element ?? element('div', 'mark-strip'), ...rows);
  if (strip) whole.append(strip.readout);
  return whole;
}

/** Conversion of milliseconds to per cent of the width. */
class Scale {
  /**
   * @param {number} fromMs
   * @param {number} toMs
   */
  constructor(fromMs, toMs) {
    this.fromMs = fromMs;
    this.toMs = toMs;
  }

  /** @param {number} ms */
  percent(ms) {
    const inside = Math.min(Math.max(ms, this.fromMs), this.toMs);
    return (100 * (inside - this.fromMs)) / (this.toMs - this.fromMs);
  }
}

/** Selection of one mark at a time. */
class MarkStrip {
  /**
   * @param {Mark[]} marks in order of time
   * @param {Scale} scale
   * @param {HTMLElement} cursor
   */
  constructor(marks, scale, cursor) {
    /** @private */
    this.marks = marks;
    /** @private */
    this.scale = scale;
    /** @private */
    this.cursor = cursor;
    /** @private */
    this.place = -1;
    this.element = element('div', 'mark-strip');
    /** @private */
    this.track = element('div', 'mark-track');
    for (const [name, value] of Object.entries({
      role: 'slider',
      tabindex: '0',
      'aria-label': 'Marks of the turn',
      'aria-valuemin': '1',
      'aria-valuemax': String(marks.length),
      'aria-valuenow': '1',
      'aria-valuetext': describe(marks[0]),
    })) {
      this.track.setAttribute(name, value);
    }
    for (const { ms } of marks) {
      const tick = element('span', 'tick');
      tick.style.left = `${scale.percent(ms)}%`;
      this.track.append(tick);
    }
    /** Description of the selected mark. */
    this.readout = element('p', 'mark-readout', HINT);
    this.element.append(this.track);
    this.track.addEventListener('keydown', (event) => this.onKey(event));
    this.track.addEventListener('focus', () => this.choose(Math.max(0, this.place)));
    for (const kind of /** @type {const} */ (['pointermove', 'pointerdown'])) {
      this.track.addEventListener(kind, (event) => this.onPointer(event));
    }
  }

  /**
   * @private
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    const last = this.marks.length - 1;
    /** @type {Record<string, number>} */
    const targets = {
      ArrowRight: this.place + 1,
      ArrowUp: this.place + 1,
      ArrowLeft: this.place - 1,
      ArrowDown: this.place - 1,
      Home: 0,
      End: last,
    };
    if (!(event.key in targets)) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(targets[event.key], last)));
  }

  /**
   * @private
   * @param {PointerEvent} event
   */
  onPointer({ clientX }) {
    const { left, width } = this.track.getBoundingClientRect();
    const at = (100 * (clientX - left)) / width;
    const distances = this.marks.map(({ ms }) => Math.abs(this.scale.percent(ms) - at));
    this.choose(distances.indexOf(Math.min(...distances)));
  }

  /**
   * @private
   * @param {number} place
   */
  choose(place) {
    this.place = place;
    const mark = this.marks[place];
    const text = describe(mark);
    this.track.setAttribute('aria-valuenow', String(place + 1));
    this.track.setAttribute('aria-valuetext', text);
    write(this.readout, text);
    this.cursor.hidden = false;
    this.cursor.style.left = `${this.scale.percent(mark.ms)}%`;
    [...this.track.children].forEach((tick, index) =>
      tick.toggleAttribute('data-chosen', index === place),
    );
  }
}

/** @param {Mark} mark */
export function describe({ name, ms }) {
  const signed = ms > 0 ? `+${milliseconds(ms)}` : milliseconds(ms);
  return `${signed}: ${MARKS[name] ?? name}`;
}

/**
 * @param {Turn} turn
 * @param {string} stage
 */
function isDrawn(turn, stage) {
  const times = turn.stages?.[stage];
  return times !== undefined && (times.spent_ms >= DRAWN_MS || times.exposed_ms >= DRAWN_MS);
}

/**
 * @param {Turn} turn
 * @param {string} stage
 * @param {Scale} scale
 */
function stageRow(turn, stage, scale) {
  const { spent_ms, exposed_ms } = /** @type {{spent_ms: number, exposed_ms: number}} */ (
    turn.stages?.[stage]
  );
  const made = element('div', 'stage-row');
  const name = element('span', 'stage-name', STAGE_NAMES[stage]);
  const track = element('span', 'stage-track');
  track.setAttribute('aria-hidden', 'true');
  for (const [kind, spans] of /** @type {[string, Span[]][]} */ ([
    ['spent', turn.waterfall?.spans ?? []],
    ['exposed', turn.waterfall?.path ?? []],
  ])) {
    for (const span of spans) {
      if (span.stage === stage) track.append(piece(span, kind, scale));
    }
  }
  const times = element('span', 'stage-times');
  times.append(
    element('b', '', milliseconds(exposed_ms)),
    element('span', 'unseen', ' waited for,'),
    ` ${milliseconds(spent_ms)} `,
    element('span', 'unseen', 'worked'),
  );
  made.append(name, track, times);
  return made;
}

/**
 * @param {Span} span
 * @param {string} kind
 * @param {Scale} scale
 */
function piece({ stage, start_ms, end_ms }, kind, scale) {
  const made = element('span', `piece ${kind}`);
  const left = scale.percent(start_ms);
  made.dataset.stage = stage;
  made.style.left = `${left}%`;
  made.style.width = `${scale.percent(end_ms) - left}%`;
  return made;
}

/**
 * @param {Scale} scale
 * @param {number} ms
 * @param {string} className
 * @param {string} text
 */
function upright(scale, ms, className, text) {
  const made = element('span', `rule ${className}`);
  made.append(element('span', '', text));
  made.style.left = `${scale.percent(ms)}%`;
  return made;
}

/**
 * The bar of the turn that happens now: it begins at the caller's last word and grows to the first
 * sound that is heard, in the colour of whatever is waited for. Below it, thinner, the work that is
 * hidden behind the wait for the end of the turn.
 *
 * Drawn once a frame, and only while a turn is running; who wants no motion gets a drawing for each
 * thing that becomes known. Not read out: what counts is the account that takes its place.
 */

import { element } from './dom.js';
import { BUDGET_MS, STAGE_NAMES } from './stages.js';
import { axisMs, limitAt } from './turn-bar.js';

/**
 * @typedef {import('../call/turn-timing.js').LiveTurn} LiveTurn
 * @typedef {import('../call/turn-timing.js').Stretch} Stretch
 * @typedef {import('../call/turn-timing.js').TurnTiming} TurnTiming
 */

export class LiveTurnBar {
  /**
   * @param {TurnTiming} marks
   * @param {(bar: HTMLElement | null) => void} show puts the bar at the end of the conversation, or
   *   takes it away
   */
  constructor(marks, show) {
    /** @private */
    this.marks = marks;
    /** @private */
    this.show = show;
    /** @private The frame that is asked for; 0: none. */
    this.frame = 0;
    /** @private @type {Drawing | null} */
    this.drawing = null;
    /** @private */
    this.stillness = globalThis.matchMedia('(prefers-reduced-motion: reduce)');
  }

  /** Something has become known. */
  update() {
    if (this.frame === 0) this.draw();
  }

  /**
   * The first sound was heard: the bar stands still.
   * @returns {HTMLElement | null} it, to be put where its account will stand
   */
  finish() {
    this.draw();
    const box = this.drawing?.box ?? null;
    this.drawing = null;
    return box;
  }

  /** @private */
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const turn = this.marks.at(performance.now());
    if (!turn) {
      if (this.drawing) this.show(null);
      this.drawing = null;
      return;
    }
    if (!this.drawing) {
      if (turn.heard) return; // and put where it belongs
      this.drawing = new Drawing();
      this.show(this.drawing.box);
    }
    this.drawing.update(turn);
    if (turn.heard || this.stillness.matches) return;
    this.frame = requestAnimationFrame(() => this.draw());
  }
}

/** The elements of one bar. */
class Drawing {
  constructor() {
    this.box = element('div', 'turn live');
    this.box.setAttribute('aria-hidden', 'true');
    /** @private */
    this.figure = element('strong', '');
    /** @private */
    this.note = element('span', 'turn-note');
    /** @private */
    this.track = element('div', 'turn-track');
    /** @private */
    this.limit = element('span', 'turn-limit');
    /** @private */
    this.ahead = element('div', 'turn-ahead');
    const line = element('p', 'turn-headline');
    line.append(this.figure, ' ', this.note);
    this.limit.append(element('span', '', `${BUDGET_MS} ms`));
    this.track.append(this.limit);
    this.box.append(line, this.track, this.ahead);
  }

  /** @param {LiveTurn} turn */
  update({ elapsedMs, waited, ahead, stage, heard }) {
    const axis = axisMs(elapsedMs);
    this.figure.textContent = `${Math.round(elapsedMs)} ms`;
    this.figure.className = elapsedMs <= BUDGET_MS ? 'within' : 'over';
    this.box.dataset.now = stage;
    const beside = ahead.find(({ toMs }) => toMs === elapsedMs);
    const working = beside ? ` · meanwhile ${STAGE_NAMES[beside.stage]}` : '';
    const note = heard ? 'from your last word to the first sound' : STAGE_NAMES[stage] + working;
    if (this.note.textContent !== note) this.note.textContent = note;
    lay(this.track, waited, axis, 'turn-part');
    lay(this.ahead, ahead, axis, 'turn-work');
    this.limit.style.left = limitAt(axis);
  }
}

/**
 * Parts to scale, those that were there before kept.
 * @param {HTMLElement} lane
 * @param {Stretch[]} stretches
 * @param {number} axis
 * @param {string} className
 */
function lay(lane, stretches, axis, className) {
  const parts = /** @type {HTMLElement[]} */ ([...lane.getElementsByClassName(className)]);
  for (const [index, { stage, fromMs, toMs }] of stretches.entries()) {
    const part = parts[index] ?? lane.appendChild(element('span', className));
    part.dataset.stage = stage;
    part.style.left = `${(100 * fromMs) / axis}%`;
    part.style.width = `${(100 * (toMs - fromMs)) / axis}%`;
  }
  for (const part of parts.slice(stretches.length)) part.remove();
}

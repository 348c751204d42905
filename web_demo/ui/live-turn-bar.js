/**
 * Bar of the running turn: it grows from the caller's last word to the first audible sample, in the
 * colour of the stage that is waited for. The thinner bar below it shows work that is hidden behind
 * end-of-turn detection.
 *
 * Drawn once a frame while a turn runs; with reduced motion once for each mark. Hidden from screen
 * readers: they get the account that replaces it.
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
   *   removes it
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

  /** A mark has arrived. */
  update() {
    if (this.frame === 0) this.draw();
  }

  /**
   * The first audible sample was played: stop the bar.
   * @returns {HTMLElement | null} the bar, to be placed where its account will be
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
      if (turn.heard) return; // and placed with its message
      this.drawing = new Drawing();
      this.show(this.drawing.box);
    }
    this.drawing.update(turn);
    if (turn.heard || this.stillness.matches) return;
    this.frame = requestAnimationFrame(() => this.draw());
  }
}

/** Elements of one bar. */
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
 * Draw segments to scale, reusing elements.
 * @param {HTMLElement} track
 * @param {Stretch[]} stretches
 * @param {number} axis
 * @param {string} className
 */
function lay(track, stretches, axis, className) {
  const parts = /** @type {HTMLElement[]} */ ([...track.getElementsByClassName(className)]);
  for (const [index, { stage, fromMs, toMs }] of stretches.entries()) {
    const part = parts[index] ?? track.appendChild(element('span', className));
    part.dataset.stage = stage;
    part.style.left = `${(100 * fromMs) / axis}%`;
    part.style.width = `${(100 * (toMs - fromMs)) / axis}%`;
  }
  for (const part of parts.slice(stretches.length)) part.remove();
}

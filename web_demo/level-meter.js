/**
 * How loud somebody is: a bar that rises at once and falls slowly.
 *
 * Drawn once a frame at most, by a transform, which costs no layout; with nothing to show no frame is
 * asked for. For those who want less motion it moves in three steps. Screen readers are spared it: the
 * phase says in words who speaks.
 */

/** A level of speech, 0.003 to 0.3 as root mean square, on the bar: its square root shows both ends. */
const SCALE = 1.8;

/** Of the bar, per frame. */
const FALL = 0.04;

const STEPS = 3;

export class LevelMeter {
  /**
   * @param {HTMLElement} bar drawn with a property of its style, 0 to 1
   * @param {string} property
   */
  constructor(bar, property) {
    /** @private */
    this.bar = bar;
    /** @private */
    this.property = property;
    /** @private */
    this.aim = 0;
    /** @private */
    this.drawn = 0;
    /** @private */
    this.waits = false;
    /** @private */
    this.lessMotion = globalThis.matchMedia('(prefers-reduced-motion: reduce)');
  }

  /** @param {number} level root mean square */
  show(level) {
    this.aim = Math.min(1, Math.sqrt(level) * SCALE);
    this.ask();
  }

  /** @private */
  ask() {
    if (this.waits || this.aim === this.drawn) return;
    this.waits = true;
    requestAnimationFrame(() => this.draw());
  }

  /** @private */
  draw() {
    this.waits = false;
    this.drawn = Math.max(this.aim, this.drawn - FALL);
    const shown = this.lessMotion.matches ? Math.round(this.drawn * STEPS) / STEPS : this.drawn;
    const value = shown.toFixed(3);
    if (this.bar.style.getPropertyValue(this.property) !== value) {
      this.bar.style.setProperty(this.property, value);
    }
    this.ask();
  }
}

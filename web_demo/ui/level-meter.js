/**
 * How loud somebody is, as a bar.
 *
 * Set when a batch of sound says something new, and moved by a transform, which costs no layout. For
 * those who want less motion it has three steps. Screen readers are spared it: the phase says in words
 * who speaks.
 */

/** A level of speech, 0.003 to 0.3 as root mean square, on the bar: its square root shows both ends. */
const SCALE = 1.8;

/** Finer is not seen, and would cost a style for nothing. */
const STEPS = 50;

const FEW_STEPS = 3;

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
    this.shown = '';
    /** @private */
    this.lessMotion = globalThis.matchMedia('(prefers-reduced-motion: reduce)');
  }

  /** @param {number} level root mean square */
  show(level) {
    const steps = this.lessMotion.matches ? FEW_STEPS : STEPS;
    const share = Math.min(1, Math.sqrt(level) * SCALE);
    const value = (Math.round(share * steps) / steps).toFixed(2);
    if (value === this.shown) return;
    this.shown = value;
    this.bar.style.setProperty(this.property, value);
  }
}

/**
 * Level meter of one speaker.
 *
 * Updated when the level changes, by a transform, which costs no layout. With reduced motion it has
 * three steps. Hidden from screen readers: the phase names the speaker in words.
 */

/** Range of speech, 0.003 to 0.3 root mean square. The square root makes both ends visible. */
const SCALE = 1.8;

/** Number of steps; finer ones are invisible and would cost style updates. */
const STEPS = 50;

const FEW_STEPS = 3;

export class LevelMeter {
  /**
   * @param {HTMLElement} bar styled by a custom property, 0 to 1
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

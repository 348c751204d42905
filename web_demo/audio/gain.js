/**
 * How loud the agent is: quieter, for as long as the server wonders whether the caller interrupts.
 *
 * A step in level is heard as a click, so every change is a ramp, sample by sample. Pure: no audio
 * API, so that Node can test it. Lives in the audio thread.
 */

/** -14 dB: audible enough to go on from, quiet enough to be talked over. */
export const DUCKED_GAIN = 0.2;
/** Short: the caller has already been speaking for a while when the server knows. */
const FALL_S = 0.02;
/** Slower, for a voice that comes back at once startles. */
const RISE_S = 0.1;

export class Gain {
  /** @param {number} rateHz */
  constructor(rateHz) {
    /** @private */
    this.fall = (1 - DUCKED_GAIN) / (FALL_S * rateHz);
    /** @private */
    this.rise = (1 - DUCKED_GAIN) / (RISE_S * rateHz);
    this.level = 1;
  }

  /**
   * Apply to `samples`, on the way to quiet or to full.
   * @param {Float32Array} samples
   * @param {boolean} ducked
   */
  apply(samples, ducked) {
    if (!ducked && this.level === 1) return;
    for (let i = 0; i < samples.length; i += 1) {
      this.level = ducked
        ? Math.max(DUCKED_GAIN, this.level - this.fall)
        : Math.min(1, this.level + this.rise);
      samples[i] *= this.level;
    }
  }
}

/**
 * Gain of the agent's voice. It is ducked while the server decides whether the caller is
 * interrupting.
 *
 * A step in level is audible as a click, so every change is a per-sample ramp. Pure: no audio API,
 * so that Node can test it. Runs in the audio thread.
 */

/** -14 dB: audible enough to go on from, quiet enough to be talked over. */
export const DUCKED_GAIN = 0.2;
/**
 * Duration of the ramp down. Short, because the caller has been speaking for a while when the
 * server detects it.
 */
const FALL_S = 0.02;
/** Duration of the ramp up. Longer, because a voice that returns at once startles. */
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
   * Apply the gain to `samples` in place, ramping towards the ducked or the full level.
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

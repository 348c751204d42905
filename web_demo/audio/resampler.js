/**
 * Streaming resampler between any two integer rates.
 *
 * Theory of operation. With L/M = output rate / input rate in lowest terms, output sample n lies at
 * input position n*M/L. Its fractional part takes only L values, so a windowed-sinc low-pass
 * (Kaiser; Oppenheim & Schafer, section 7.5) is tabulated once for each of these phases, and every
 * output is one dot product of 2H input samples with one row. The position is kept as two integers:
 * nothing drifts in an hour's call, and the same stream gives bit-equal output however it is cut
 * into pieces. History is carried between calls, so there are no seams; a fresh resampler per
 * 20 ms chunk would click fifty times a second.
 *
 * Delay: H input samples (0.8 ms from 48 to 24 kHz). `flush` pads with silence and gives the rest,
 * so that n input samples always give ceil(n*L/M) output samples on the same time axis.
 *
 * Runs in the audio thread (worklets) as well as on the page; touches nothing outside itself.
 */

/**
 * Zero crossings of the sinc on each side, at the lower of the two rates. With 8 the transition
 * band eats speech above 9 kHz; beyond 24 only the cost grows.
 */
const ZERO_CROSSINGS = 16;

/** Kaiser beta: about 80 dB of stop band, below the noise of any microphone. */
const KAISER_BETA = 8;

/** Pass band edge as a share of the lower Nyquist rate; leaves room for the transition band. */
const PASS_BAND = 0.92;

/**
 * Modified Bessel function of the first kind, order 0, by its power series.
 * @param {number} x
 * @returns {number}
 */
function besselI0(x) {
  let term = 1;
  let sum = 1;
  for (let k = 1; term > sum * 1e-12; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

/**
 * @param {number} a
 * @param {number} b
 * @returns {number}
 */
function greatestCommonDivisor(a, b) {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}

/**
 * One row of 2*halfWidth coefficients for each phase, each row with unit gain at 0 Hz.
 * @param {number} numPhases
 * @param {number} halfWidth input samples on each side
 * @param {number} cutoff cycles per input sample
 * @returns {Float32Array[]}
 */
function tabulate(numPhases, halfWidth, cutoff) {
  const window0 = besselI0(KAISER_BETA);
  return Array.from({ length: numPhases }, (_, phase) => {
    const row = new Float64Array(2 * halfWidth);
    let gain = 0;
    for (let j = 0; j < row.length; j += 1) {
      const distance = phase / numPhases + halfWidth - 1 - j;
      const edge = Math.min(1, Math.abs(distance) / halfWidth);
      const angle = 2 * Math.PI * cutoff * distance;
      const sinc = angle === 0 ? 1 : Math.sin(angle) / angle;
      row[j] = (sinc * besselI0(KAISER_BETA * Math.sqrt(1 - edge * edge))) / window0;
      gain += row[j];
    }
    return Float32Array.from(row, (coefficient) => coefficient / gain);
  });
}

export class Resampler {
  /**
   * @param {number} inputRateHz
   * @param {number} outputRateHz
   */
  constructor(inputRateHz, outputRateHz) {
    const from = Math.round(inputRateHz);
    const to = Math.round(outputRateHz);
    if (!(from > 0 && to > 0)) {
      throw new RangeError(`cannot resample from ${inputRateHz} Hz to ${outputRateHz} Hz`);
    }
    const divisor = greatestCommonDivisor(from, to);
    /** @private Output samples per `M` input samples. */
    this.L = to / divisor;
    /** @private */
    this.M = from / divisor;
    const ratio = Math.max(1, from / to);
    /** @private */
    this.halfWidth = Math.ceil(ZERO_CROSSINGS * ratio);
    /** @private */
    this.rows =
      this.L === this.M ? [] : tabulate(this.L, this.halfWidth, (0.5 * PASS_BAND) / ratio);
    /** @private Input not used up yet, behind `halfWidth - 1` samples of history. */
    this.held = new Float32Array(4096);
    /** @private Number of samples in `held`. */
    this.numHeld = this.halfWidth - 1;
    /** @private First sample of the next output's window, in `held`. */
    this.start = 0;
    /** @private */
    this.phase = 0;
  }

  /** Forget the stream; the next sample is the first of a new one. */
  reset() {
    this.held.fill(0);
    this.numHeld = this.halfWidth - 1;
    this.start = 0;
    this.phase = 0;
  }

  /**
   * @param {Float32Array} input the next samples of the stream, any number of them
   * @returns {Float32Array} the output samples that are complete
   */
  process(input) {
    if (this.L === this.M) return input.slice();
    this.append(input);
    const taps = 2 * this.halfWidth;
    const room = Math.max(0, this.numHeld - taps - this.start + 1);
    const output = new Float32Array(Math.ceil((room * this.L) / this.M) + 1);
    let count = 0;
    while (this.start + taps <= this.numHeld) {
      const row = this.rows[this.phase];
      let sum = 0;
      for (let j = 0; j < taps; j += 1) sum += row[j] * this.held[this.start + j];
      output[count] = sum;
      count += 1;
      this.phase += this.M;
      this.start += Math.floor(this.phase / this.L);
      this.phase %= this.L;
    }
    const used = Math.min(this.start, this.numHeld);
    this.held.copyWithin(0, used, this.numHeld);
    this.numHeld -= used;
    this.start -= used;
    return output.subarray(0, count);
  }

  /**
   * The last samples of a stream that is over. The resampler is then ready for the next one.
   * @returns {Float32Array}
   */
  flush() {
    const rest = this.process(new Float32Array(this.halfWidth));
    this.reset();
    return this.L === this.M ? new Float32Array(0) : rest;
  }

  /**
   * @private
   * @param {Float32Array} input
   */
  append(input) {
    const needed = this.numHeld + input.length;
    if (needed > this.held.length) {
      const larger = new Float32Array(2 * needed);
      larger.set(this.held.subarray(0, this.numHeld));
      this.held = larger;
    }
    this.held.set(input, this.numHeld);
    this.numHeld = needed;
  }
}

/**
 * Playback buffer: samples that wait to be played, and the count of samples played of each reply.
 *
 * Theory of operation. Replies arrive in pieces, faster than they are played. Their samples are
 * kept in one ring buffer; a short list of segments records which reply owns how many of them. The
 * audio thread pulls. Invariants:
 * - `flush` is immediate: the ring is emptied at once. Only the next few milliseconds survive, as a
 * fade-out in `fading`, because a wave cut in mid-swing is heard as a click. They are counted as
 * played when they are set aside, so the count given by `flush` is final.
 * - played counts come from samples handed to the device, never from a clock.
 * - an underrun is silence, not noise: the wave is led to zero, and playing resumes only once a
 * cushion has gathered, or a late network would sound like gravel.
 *
 * Pure: no audio API, so that Node can test it. Runs in the audio thread.
 */

/**
 * @typedef {object} ItemProgress
 * @property {string} itemId
 * @property {number} played samples handed to the device
 */

/**
 * @typedef {object} Segment
 * @property {string} itemId
 * @property {number} played
 * @property {number} waiting samples of this item still in the ring
 * @property {boolean} ended true when all samples have been pushed
 */

export class PlaybackBuffer {
  /**
   * @param {object} limits all in samples
   * @param {number} limits.capacity beyond it new samples are dropped and counted
   * @param {number} limits.fade length of a fade
   * @param {number} limits.startCushion samples to gather before a reply starts
   * @param {number} limits.resumeCushion samples to gather after an underrun
   */
  constructor(limits) {
    this.limits = limits;
    /** @private */
    this.samples = new Float32Array(limits.capacity);
    /** @private */
    this.readAt = 0;
    /** Samples waiting. */
    this.waiting = 0;
    /** @private @type {Segment[]} */
    this.segments = [];
    /** @private */
    this.fading = new Float32Array(0);
    /** @private Samples of fade-in still to apply. */
    this.rising = 0;
    /** @private */
    this.last = 0;
    this.playing = false;
    /** @private */
    this.cushion = limits.startCushion;
    this.underruns = 0;
    this.dropped = 0;
  }

  /**
   * @param {string} itemId
   * @param {Float32Array} samples
   */
  push(itemId, samples) {
    const accepted = Math.min(samples.length, this.limits.capacity - this.waiting);
    this.dropped += samples.length - accepted;
    const writeAt = (this.readAt + this.waiting) % this.limits.capacity;
    const first = Math.min(accepted, this.limits.capacity - writeAt);
    this.samples.set(samples.subarray(0, first), writeAt);
    this.samples.set(samples.subarray(first, accepted), 0);
    this.waiting += accepted;
    let segment = this.segments.at(-1);
    if (segment?.itemId !== itemId) {
      segment = { itemId, played: 0, waiting: 0, ended: false };
      this.segments.push(segment);
    }
    segment.waiting += accepted;
  }

  /**
   * All samples of this item have been pushed.
   * @param {string} itemId
   */
  end(itemId) {
    for (const segment of this.segments) {
      if (segment.itemId === itemId) segment.ended = true;
    }
  }

  /**
   * Fill `output` with what is to be heard next.
   * @param {Float32Array} output
   * @returns {ItemProgress[]} the items that have now been played to their end
   */
  pull(output) {
    output.fill(0);
    if (!this.playing && this.readyToStart()) this.playing = true;
    const count = this.playing ? Math.min(output.length, this.waiting) : 0;
    for (let i = 0; i < count; i += 1) {
      output[i] = this.take();
      if (this.rising > 0) {
        output[i] *= 1 - this.rising / this.limits.fade;
        this.rising -= 1;
      }
      this.last = output[i];
    }
    this.addFade(output);
    const finished = this.account(count);
    if (this.playing && count < output.length) {
      this.pause();
      this.addFade(output.subarray(count));
    }
    return finished;
  }

  /**
   * Drop all waiting samples.
   * @returns {ItemProgress[]} the items that were cut, with the samples played of each
   */
  flush() {
    const length = this.playing ? Math.min(this.limits.fade, this.waiting) : 0;
    const fade = new Float32Array(length);
    for (let i = 0; i < length; i += 1) fade[i] = this.take() * (1 - (i + 1) / length);
    if (length > 0) this.fading = fade;
    const finished = this.account(length);
    const cut = this.segments.map(({ itemId, played }) => ({ itemId, played }));
    this.readAt = 0;
    this.waiting = 0;
    this.segments = [];
    this.playing = false;
    this.rising = 0;
    this.cushion = this.limits.startCushion;
    return [...finished, ...cut];
  }

  /** Id of the item that is played now or next; empty when nothing waits. */
  get current() {
    return this.segments[0]?.itemId ?? '';
  }

  /** @returns {ItemProgress[]} items not played to their end yet */
  progress() {
    return this.segments.map(({ itemId, played }) => ({ itemId, played }));
  }

  /** @private */
  readyToStart() {
    const head = this.segments[0];
    return this.waiting > 0 && (this.waiting >= this.cushion || head.ended);
  }

  /** @private Out of samples: lead the wave to zero, and gather a cushion if more is to come. */
  pause() {
    this.playing = false;
    const late = this.segments.length > 0;
    if (late) this.underruns += 1;
    this.cushion = late ? this.limits.resumeCushion : this.limits.startCushion;
    this.rising = late ? this.limits.fade : 0;
    const { fade } = this.limits;
    this.fading = Float32Array.from({ length: fade }, (_, i) => this.last * (1 - (i + 1) / fade));
    this.last = 0;
  }

  /**
   * @private
   * @param {Float32Array} output
   */
  addFade(output) {
    const count = Math.min(output.length, this.fading.length);
    for (let i = 0; i < count; i += 1) output[i] += this.fading[i];
    this.fading = this.fading.subarray(count);
  }

  /** @private */
  take() {
    const sample = this.samples[this.readAt];
    this.readAt = (this.readAt + 1) % this.limits.capacity;
    this.waiting -= 1;
    return sample;
  }

  /**
   * @private
   * @param {number} count samples just taken from the ring
   * @returns {ItemProgress[]}
   */
  account(count) {
    const finished = [];
    for (;;) {
      const head = this.segments[0];
      if (!head) break;
      const own = Math.min(count, head.waiting);
      head.played += own;
      head.waiting -= own;
      count -= own;
      if (head.waiting > 0 || !(head.ended || this.segments.length > 1)) break;
      this.segments.shift();
      finished.push({ itemId: head.itemId, played: head.played });
    }
    return finished;
  }
}

/**
 * Recorder of an audio output: emits the audible samples in blocks with their position.
 *
 * Silence, which is most of an agent's side, is left out. Pure: no audio API, so that Node can test
 * it. Runs in the audio thread.
 */

export class OutputRecorder {
  /**
   * @param {number} length samples per block; a silence ends a block early
   * @param {(samples: Float32Array, frame: number) => void} give receives each block and the
   *   position of its first sample, in frames of the context's clock
   */
  constructor(length, give) {
    /** @private */
    this.length = length;
    /** @private */
    this.give = give;
    /** @private */
    this.piece = new Float32Array(length);
    /** @private */
    this.filled = 0;
    /** @private */
    this.frame = 0;
  }

  /**
   * @param {Float32Array} samples the next samples, at most one block
   * @param {number} frame position of the first sample
   */
  take(samples, frame) {
    if (!samples.some((sample) => sample !== 0)) {
      this.end();
      return;
    }
    if (this.filled + samples.length > this.length) this.end();
    if (this.filled === 0) this.frame = frame;
    this.piece.set(samples, this.filled);
    this.filled += samples.length;
  }

  /** @private */
  end() {
    if (this.filled === 0) return;
    this.give(this.piece.slice(0, this.filled), this.frame);
    this.filled = 0;
  }
}

/**
 * What really came out of a stream of sound, in pieces that say when: for the recording of a call.
 *
 * Silence is left out, which is most of an agent's side. Pure: no audio API, so that Node can test
 * it. Lives in the audio thread.
 */

export class OutputRecorder {
  /**
   * @param {number} length samples of a piece; shorter ones come before a silence
   * @param {(samples: Float32Array, frame: number) => void} give takes each piece, and the frame of
   *   its first sample by the context's clock
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
   * @param {Float32Array} samples the next ones; no more than a piece
   * @param {number} frame of the first of them
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

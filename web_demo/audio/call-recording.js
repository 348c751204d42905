/**
 * Stereo recording of a call on one time axis: the caller left as captured, the agent right as
 * played. It stays in the page until it is downloaded.
 *
 * Audio is written into blocks of five seconds. A full block becomes a Blob, which browsers keep
 * outside the page's memory, on disk when there is much of it; the file is assembled from the Blobs
 * without copying. Overflow policy: beyond `MAX_BYTES` the oldest block is dropped.
 *
 * Times are milliseconds on the axis of the call, by the audio context's clock, which both sides
 * share, so simultaneous speech is aligned.
 */

import { WIRE_RATE_HZ } from './pcm.js';

const BYTES_PER_FRAME = 4;

/** Five seconds: 480 kB in memory, twice. */
export const BLOCK_FRAMES = 5 * WIRE_RATE_HZ;

const BLOCK_BYTES = BLOCK_FRAMES * BYTES_PER_FRAME;

/** 17 minutes of audio. */
export const MAX_BYTES = 100_000_000;

/** Blocks that may still be written to. Audio is late by less than a second. */
const MAX_OPEN = 2;

/** A smaller deviation from the expected position is rounding, not a gap. */
const JITTER_FRAMES = WIRE_RATE_HZ / 100;

/** @typedef {'caller' | 'agent'} Side */

export class CallRecording {
  /** @param {number} [maxBytes] */
  constructor(maxBytes = MAX_BYTES) {
    /** @private */
    this.maxBlocks = Math.floor(maxBytes / BLOCK_BYTES);
    /** @private By their place on the axis; only those with sound. @type {Map<number, Int16Array | Blob>} */
    this.blocks = new Map();
    /** @private First frame after the newest sound of each side. */
    this.next = { caller: 0, agent: 0 };
    /** True when old audio was dropped. */
    this.hasForgotten = false;
  }

  get isEmpty() {
    return this.blocks.size === 0;
  }

  /**
   * Start on the axis, in ms: the start of a block, or the first audio at the beginning of the
   * call.
   */
  get startMs() {
    return (1000 * this.firstBlock * BLOCK_FRAMES) / WIRE_RATE_HZ;
  }

  /**
   * @param {Side} side
   * @param {Int16Array} pcm at the wire's rate
   * @param {number} atMs of its first sample on the axis
   */
  write(side, pcm, atMs) {
    if (!pcm.some((sample) => sample !== 0)) return;
    const asked = Math.round((atMs * WIRE_RATE_HZ) / 1000);
    const expected = this.next[side];
    const start = Math.max(0, Math.abs(asked - expected) < JITTER_FRAMES ? expected : asked);
    this.next[side] = start + pcm.length;
    const offset = side === 'caller' ? 0 : 1;
    for (let done = 0; done < pcm.length;) {
      const number = Math.floor((start + done) / BLOCK_FRAMES);
      const place = (start + done) % BLOCK_FRAMES;
      const count = Math.min(pcm.length - done, BLOCK_FRAMES - place);
      const block = this.open(number);
      for (let i = 0; block && i < count; i += 1) block[2 * (place + i) + offset] = pcm[done + i];
      done += count;
    }
  }

  /** @returns {Blob} a stereo WAV file; parts without audio are silent */
  file() {
    const silence = new Blob([new Uint8Array(BLOCK_BYTES)]);
    const last = Math.max(this.next.caller, this.next.agent);
    const first = this.firstBlock;
    const numBytes = Math.max(0, last - first * BLOCK_FRAMES) * BYTES_PER_FRAME;
    /** @type {Blob[]} */
    const parts = [];
    for (let number = first; number * BLOCK_FRAMES < last; number += 1) {
      const block = this.blocks.get(number) ?? silence;
      const frames = Math.min(BLOCK_FRAMES, last - number * BLOCK_FRAMES);
      parts.push(blobOf(block).slice(0, frames * BYTES_PER_FRAME));
    }
    return new Blob([wavHeader(numBytes), ...parts], { type: 'audio/wav' });
  }

  /** @private */
  get firstBlock() {
    return this.isEmpty ? 0 : Math.min(...this.blocks.keys());
  }

  /**
   * @private
   * @param {number} number
   * @returns {Int16Array | null} null when it is too old to be written to
   */
  open(number) {
    const known = this.blocks.get(number);
    if (known) return known instanceof Blob ? null : known;
    const block = new Int16Array(2 * BLOCK_FRAMES);
    this.blocks.set(number, block);
    const open = [...this.blocks].filter(([, each]) => !(each instanceof Blob));
    for (const [old, each] of open.sort(([a], [b]) => a - b).slice(0, -MAX_OPEN)) {
      this.blocks.set(old, blobOf(each));
    }
    while (this.blocks.size > this.maxBlocks) {
      this.blocks.delete(this.firstBlock);
      this.hasForgotten = true;
    }
    return block;
  }
}

/**
 * @param {Int16Array | Blob} block
 * @returns {Blob}
 */
function blobOf(block) {
  return block instanceof Blob ? block : new Blob([/** @type {Int16Array<ArrayBuffer>} */ (block)]);
}

/**
 * RIFF, stereo, 16 bit ("Multimedia Programming Interface and Data Specifications 1.0", 1991).
 * @param {number} numBytes of samples
 * @returns {ArrayBuffer}
 */
export function wavHeader(numBytes) {
  const header = new DataView(new ArrayBuffer(44));
  const words = /** @type {[number, string][]} */ ([[0, 'RIFF'], [8, 'WAVE'], [12, 'fmt '], [36, 'data']]);
  for (const [at, text] of words) {
    for (let i = 0; i < 4; i += 1) header.setUint8(at + i, text.charCodeAt(i));
  }
  header.setUint32(4, 36 + numBytes, true);
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 2, true);
  header.setUint32(24, WIRE_RATE_HZ, true);
  header.setUint32(28, WIRE_RATE_HZ * BYTES_PER_FRAME, true);
  header.setUint16(32, BYTES_PER_FRAME, true);
  header.setUint16(34, 16, true);
  header.setUint32(40, numBytes, true);
  return header.buffer;
}

/**
 * Playback on the main thread: resamples received audio, passes it to the worklet, and counts the
 * milliseconds of each reply that have been played.
 *
 * Resampling happens here rather than in the audio thread: a burst of a second of speech must never
 * delay audio that is already due.
 */

import { WIRE_RATE_HZ } from './pcm.js';
import { Resampler } from './resampler.js';

/**
 * @typedef {object} Heard
 * @property {string} itemId
 * @property {number} playedMs handed to the device since the item began
 */

/** Timeout of a flush. A suspended context answers no message; the last report is used then. */
const FLUSH_TIMEOUT_MS = 150;

/** Maximum number of cut items whose late audio is recognized. */
const MAX_CUT_ITEMS = 32;

export class Playback extends EventTarget {
  /**
   * @param {AudioContext} context
   * @returns {Promise<Playback>}
   */
  static async create(context) {
    await context.audioWorklet.addModule('audio/playback-worklet.js');
    return new Playback(context);
  }

  /**
   * Use `Playback.create`: the worklet has to be loaded first.
   * @param {AudioContext} context
   */
  constructor(context) {
    super();
    /** @private */
    this.context = context;
    /** @private */
    this.resampler = new Resampler(WIRE_RATE_HZ, context.sampleRate);
    /** @private The item the resampler is in the middle of. */
    this.current = '';
    /** @private Items with audio not played out, and their last known count. @type {Map<string, number>} */
    this.outstanding = new Map();
    /** Items whose late audio is dropped. @type {Set<string>} */
    this.cut = new Set();
    /** @private @type {Map<number, (items: {itemId: string, played: number}[]) => void>} */
    this.flushes = new Map();
    /** @private */
    this.numFlushes = 0;
    this.underruns = 0;
    this.droppedMs = 0;
    /** @private */
    this.node = new AudioWorkletNode(context, 'playback', {
      numberOfInputs: 0,
      outputChannelCount: [2],
    });
    this.node.connect(context.destination);
    this.node.port.onmessage = ({ data }) => this.receive(data);
  }

  /** True while a reply has audio that has not been played. */
  get active() {
    return this.outstanding.size > 0;
  }

  /**
   * Audio of a reply, in order. Late audio of a reply that was cut is dropped.
   * @param {string} itemId
   * @param {Float32Array} samples at the wire's rate
   */
  push(itemId, samples) {
    if (this.cut.has(itemId)) return;
    if (this.current && this.current !== itemId) this.end(this.current);
    this.current = itemId;
    if (!this.outstanding.has(itemId)) this.outstanding.set(itemId, 0);
    this.post(itemId, this.resampler.process(samples));
  }

  /**
   * The reply is complete.
   * @param {string} itemId
   */
  end(itemId) {
    if (this.current !== itemId) return;
    this.current = '';
    this.post(itemId, this.resampler.flush());
    this.node.port.postMessage({ end: itemId });
  }

  /**
   * Silence the output at once. Waiting audio is dropped, and so is audio of those items that
   * arrives later.
   * @returns {Promise<Heard[]>} the items that were cut, with the milliseconds played of each
   */
  async flush() {
    const expected = new Map(this.outstanding);
    for (const itemId of expected.keys()) this.cut.add(itemId);
    for (const itemId of [...this.cut].slice(0, -MAX_CUT_ITEMS)) this.cut.delete(itemId);
    this.resampler.reset();
    this.current = '';
    this.outstanding.clear();
    const token = (this.numFlushes += 1);
    const items = await new Promise((resolve) => {
      const giveUp = setTimeout(() => resolve([]), FLUSH_TIMEOUT_MS);
      this.flushes.set(token, (counted) => {
        clearTimeout(giveUp);
        resolve(counted);
      });
      this.node.port.postMessage({ flush: token });
    });
    this.flushes.delete(token);
    for (const { itemId, played } of items) {
      if (expected.has(itemId)) expected.set(itemId, this.toMs(played));
    }
    return [...expected].map(([itemId, playedMs]) => ({ itemId, playedMs }));
  }

  /**
   * Play this reply quietly: the caller may be interrupting it. It ends with the reply at the latest.
   * @param {string} itemId
   */
  duck(itemId) {
    this.node.port.postMessage({ duck: itemId });
  }

  /** Play at full level again: it was no interruption. */
  unduck() {
    this.node.port.postMessage({ duck: '' });
  }

  /** Disconnect from the output. The object cannot be used afterwards. */
  close() {
    this.outstanding.clear();
    this.node.port.postMessage({ close: true });
    this.node.disconnect();
  }

  /**
   * @private
   * @param {string} itemId
   * @param {Float32Array} samples
   */
  post(itemId, samples) {
    if (samples.length > 0) this.node.port.postMessage({ push: samples, itemId });
  }

  /**
   * @private
   * @param {any} message
   */
  receive(message) {
    if (message.flushed) {
      this.flushes.get(message.flushed)?.(message.items);
      return;
    }
    if (message.output) {
      const detail = { samples: message.output, frame: message.frame, rateHz: this.context.sampleRate };
      this.dispatchEvent(new CustomEvent('output', { detail }));
      return;
    }
    this.underruns = message.underruns;
    this.droppedMs = this.toMs(message.dropped);
    for (const { itemId, played } of message.progress ?? message.finished) {
      if (!this.outstanding.has(itemId)) continue;
      const playedMs = this.toMs(played);
      if (message.finished) this.outstanding.delete(itemId);
      else this.outstanding.set(itemId, playedMs);
      const type = message.finished ? 'finished' : 'progress';
      const detail = { itemId, playedMs, level: message.level ?? 0 };
      this.dispatchEvent(new CustomEvent(type, { detail }));
    }
  }

  /**
   * @private
   * @param {number} samples at the context's rate
   */
  toMs(samples) {
    return (samples * 1000) / this.context.sampleRate;
  }
}

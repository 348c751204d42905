/**
 * Playback in the audio thread: a buffer at the context's rate that can be flushed.
 *
 * In: {push: Float32Array, itemId} | {end: itemId} | {flush: token} | {duck: itemId or ''}: that
 * item is played quietly, until it ends or is flushed or another is named. Out: {flushed: token,
 * items} once per flush; {finished: items, underruns, dropped}; and, twenty times a second while
 * anything is playing, {progress: items, level, underruns, dropped} and {output: samples, frame}:
 * what was played, and when.
 */

import { Gain } from './gain.js';
import { PlaybackBuffer } from './playback-buffer.js';
import { rms } from './pcm.js';
import { OutputRecorder } from './output-recorder.js';

/** Capacity in s. A server without pacing may send a long reply at once. */
const CAPACITY_S = 60;
/** Fade-out: short enough to be silent in time, long enough not to click. */
const FADE_S = 0.005;
/** One wire batch: the first audible sample must not wait longer than that. */
const START_CUSHION_S = 0.02;
/** After an underrun: three batches, so that one late packet does not cause the next underrun. */
const RESUME_CUSHION_S = 0.06;
/** Interval of progress reports; the page sends every fourth to the server. */
const REPORT_S = 0.05;

class PlaybackProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    /** @private */
    this.ring = new PlaybackBuffer({
      capacity: CAPACITY_S * sampleRate,
      fade: Math.round(FADE_S * sampleRate),
      startCushion: Math.round(START_CUSHION_S * sampleRate),
      resumeCushion: Math.round(RESUME_CUSHION_S * sampleRate),
    });
    /** @private */
    this.gain = new Gain(sampleRate);
    /** @private The item to be played quietly. */
    this.ducked = '';
    /** @private */
    this.sinceReport = 0;
    /** @private Loudest quantum since the last report. */
    this.level = 0;
    /** @private */
    this.recorder = new OutputRecorder(Math.round(REPORT_S * sampleRate), (samples, frame) => {
      this.port.postMessage({ output: samples, frame }, [
        /** @type {ArrayBuffer} */ (samples.buffer),
      ]);
    });
    /** @private */
    this.open = true;
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  /**
   * @private
   * @param {any} message
   */
  receive(message) {
    if (message.push) this.ring.push(message.itemId, message.push);
    else if (message.end) this.ring.end(message.end);
    else if (message.duck !== undefined) this.ducked = message.duck;
    else if (message.close) this.open = false;
    else this.flush(message.flush);
  }

  /**
   * @private
   * @param {number} token
   */
  flush(token) {
    this.ducked = '';
    this.port.postMessage({ flushed: token, items: this.ring.flush() });
  }

  /**
   * @param {Float32Array[][]} _inputs
   * @param {Float32Array[][]} outputs
   * @returns {boolean}
   */
  process(_inputs, outputs) {
    const [first, ...others] = outputs[0];
    const ducked = this.ducked !== '' && this.ring.current === this.ducked;
    const finished = this.ring.pull(first);
    this.gain.apply(first, ducked);
    this.recorder.take(first, currentFrame);
    for (const channel of others) channel.set(first);
    this.sinceReport += first.length;
    this.level = Math.max(this.level, rms(first));
    if (this.ring.playing && this.sinceReport >= REPORT_S * sampleRate) this.report();
    if (finished.length > 0) {
      const { underruns, dropped } = this.ring;
      this.port.postMessage({ finished, underruns, dropped });
    }
    return this.open;
  }

  /** @private */
  report() {
    const { underruns, dropped } = this.ring;
    const progress = this.ring.progress();
    this.port.postMessage({ progress, level: this.level, underruns, dropped });
    this.sinceReport = 0;
    this.level = 0;
  }
}

registerProcessor('playback', PlaybackProcessor);

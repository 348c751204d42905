/**
 * Microphone to wire samples, in the audio thread: mono, 24 kHz, int16, in batches of 20 ms.
 *
 * The context runs at the device's rate (48, 44.1, sometimes 16 kHz), so resampling happens here,
 * with state carried over quanta. Without a connected source it sends silence: the server needs the
 * silence after a sentence to detect the end of the turn.
 */

import { rms, toInt16, WIRE_RATE_HZ } from './pcm.js';
import { Resampler } from './resampler.js';

/** 20 ms: smaller batches cost a socket message each, larger ones delay the end of the turn. */
const BATCH_SAMPLES = WIRE_RATE_HZ / 50;

const SILENCE = new Float32Array(128);

class CaptureProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    /** @private */
    this.resampler = new Resampler(sampleRate, WIRE_RATE_HZ);
    /** @private */
    this.batch = new Float32Array(BATCH_SAMPLES);
    /** @private */
    this.filled = 0;
    /** @private */
    this.open = true;
    this.port.onmessage = () => {
      this.open = false;
    };
  }

  /**
   * @param {Float32Array[][]} inputs
   * @returns {boolean}
   */
  process(inputs) {
    const channels = inputs[0];
    const mono = channels.length > 0 ? mix(channels) : SILENCE;
    const samples = this.resampler.process(mono);
    for (let used = 0; used < samples.length;) {
      const count = Math.min(samples.length - used, BATCH_SAMPLES - this.filled);
      this.batch.set(samples.subarray(used, used + count), this.filled);
      this.filled += count;
      used += count;
      if (this.filled === BATCH_SAMPLES) this.post();
    }
    return this.open;
  }

  /** @private */
  post() {
    const pcm = toInt16(this.batch);
    this.port.postMessage({ pcm, level: rms(this.batch), atS: currentTime }, [
      /** @type {ArrayBuffer} */ (pcm.buffer),
    ]);
    this.filled = 0;
  }
}

/**
 * @param {Float32Array[]} channels
 * @returns {Float32Array}
 */
function mix(channels) {
  if (channels.length === 1) return channels[0];
  const sum = new Float32Array(channels[0].length);
  for (const channel of channels) {
    for (let i = 0; i < sum.length; i += 1) sum[i] += channel[i] / channels.length;
  }
  return sum;
}

registerProcessor('capture', CaptureProcessor);

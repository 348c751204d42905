/**
 * Audio input of a call: the microphone, or a recorded question in its place.
 *
 * Both go through the same worklet (`capture-worklet.js`), so a page without a microphone exercises
 * the same path. Batches of 20 ms arrive as `batch` events; `lost` means that the device was
 * removed, `hushed` (detail: boolean) whether the system mutes it, at first and with each change,
 * `sample-ended` that the recording has been played, `track` that `track` is another one.
 */

import { CaptureError, requestMicrophone } from './microphone.js';

/** @typedef {import('./microphone.js').Choice} Choice */

/** Gain of the recording at the loudspeaker, a little softer than the agent's answer. */
const SAMPLE_GAIN = 0.7;

export class Capture extends EventTarget {
  /**
   * Load the worklet into a running context.
   * @param {AudioContext} context
   * @returns {Promise<Capture>}
   */
  static async create(context) {
    await context.audioWorklet.addModule('audio/capture-worklet.js');
    return new Capture(context);
  }

  /**
   * Use `Capture.create`: the worklet has to be loaded first.
   * @param {AudioContext} context
   */
  constructor(context) {
    super();
    /** @private */
    this.context = context;
    /** @private @type {MediaStream | null} */
    this.stream = null;
    /** @private @type {MediaStreamAudioSourceNode | null} */
    this.microphone = null;
    /** @private @type {AudioBufferSourceNode | null} */
    this.sample = null;
    /** @private The recording as a track. @type {MediaStreamTrack | null} */
    this.sampleTrack = null;
    /** Batches are passed on only while this is true. */
    this.running = false;
    /** @private */
    this.muted = false;
    /** @private */
    this.closed = false;
    /** @private Requests for a microphone. */
    this.numAsked = 0;
    /** @private Number of the request that gave the present one. */
    this.openedBy = 0;
    /** @private */
    this.node = new AudioWorkletNode(context, 'capture', { numberOfOutputs: 1 });
    // The output is silent; connecting it makes every browser pull the node.
    this.node.connect(context.destination);
    this.node.port.onmessage = ({ data }) => {
      if (this.running) this.dispatchEvent(new CustomEvent('batch', { detail: data }));
    };
  }

  get hasMicrophone() {
    return this.microphone !== null;
  }

  /**
   * What is captured, as a track: the recording while it is played, or the microphone; null: none.
   */
  get track() {
    return this.sampleTrack ?? this.stream?.getAudioTracks()[0] ?? null;
  }

  /**
   * Request a microphone and capture from it. On a further call the old one is used until the new
   * one is available, and kept when there is none.
   * @param {Choice} choice
   * @returns {Promise<boolean>} false when the chosen device is missing and the system chose
   *   another one
   * @throws {CaptureError}
   */
  async openMicrophone(choice) {
    this.numAsked += 1;
    const number = this.numAsked;
    const { stream, isChosen } = await requestMicrophone(choice);
    if (this.closed || number < this.openedBy) {
      stop(stream); // closed meanwhile, or a later choice was there sooner
      return isChosen;
    }
    let microphone;
    try {
      microphone = this.context.createMediaStreamSource(stream);
    } catch {
      stop(stream);
      throw new CaptureError('other-rate');
    }
    this.closeMicrophone();
    this.openedBy = number;
    this.stream = stream;
    this.microphone = microphone;
    this.mute(this.muted);
    if (!this.sample) microphone.connect(this.node);
    for (const track of stream.getAudioTracks()) this.watch(track);
    this.running = true;
    this.dispatchEvent(new Event('track'));
    // One may be muted from the first, and one that is not replaces one that was.
    const detail = stream.getAudioTracks().some((track) => track.muted);
    this.dispatchEvent(new CustomEvent('hushed', { detail }));
    return isChosen;
  }

  /**
   * Replace the microphone by silence. Silence is still sent, because it ends a turn.
   * @param {boolean} muted
   */
  mute(muted) {
    this.muted = muted;
    for (const track of this.stream?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  /**
   * @private
   * @param {MediaStreamTrack} track
   */
  watch(track) {
    const isOurs = () => this.stream?.getAudioTracks().includes(track) ?? false;
    track.addEventListener('ended', () => {
      if (!isOurs()) return;
      this.closeMicrophone();
      this.dispatchEvent(new Event('lost'));
    });
    for (const type of ['mute', 'unmute']) {
      track.addEventListener(type, () => {
        if (isOurs()) this.dispatchEvent(new CustomEvent('hushed', { detail: type === 'mute' }));
      });
    }
  }

  /**
   * Play a recording to the agent in place of the microphone, from its beginning.
   * @param {string} url
   * @returns {Promise<void>} when it has started
   */
  async playSample(url) {
    const response = await fetch(url);
    if (!response.ok) throw new CaptureError('sample-missing');
    const recording = await this.context.decodeAudioData(await response.arrayBuffer());
    this.stopSample();
    const sample = this.context.createBufferSource();
    sample.buffer = recording;
    const gain = this.context.createGain();
    gain.gain.value = SAMPLE_GAIN;
    sample.connect(this.node);
    sample.connect(gain).connect(this.context.destination);
    const asTrack = this.context.createMediaStreamDestination();
    sample.connect(asTrack);
    this.microphone?.disconnect();
    sample.onended = () => {
      gain.disconnect();
      if (this.sample !== sample) return;
      this.stopSample();
      this.dispatchEvent(new Event('sample-ended'));
    };
    this.sample = sample;
    this.sampleTrack = asTrack.stream.getAudioTracks()[0];
    this.running = true;
    this.dispatchEvent(new Event('track'));
    sample.start();
  }

  /** @private */
  stopSample() {
    const sample = this.sample;
    this.sample = null;
    this.sampleTrack = null;
    sample?.stop();
    sample?.disconnect();
    this.microphone?.connect(this.node);
    if (sample) this.dispatchEvent(new Event('track'));
  }

  /** Release the device. Capture continues with silence. */
  closeMicrophone() {
    this.microphone?.disconnect();
    this.microphone = null;
    if (this.stream) stop(this.stream);
    this.stream = null;
    this.dispatchEvent(new Event('track'));
  }

  /** Release the device. The object cannot be used afterwards. */
  close() {
    this.closed = true;
    this.running = false;
    this.stopSample();
    this.closeMicrophone();
    this.node.port.postMessage('close');
    this.node.disconnect();
  }
}

/** @param {MediaStream} stream */
function stop(stream) {
  for (const track of stream.getTracks()) track.stop();
}

/**
 * The browser's audio: one context, the microphone into it, the loudspeaker out of it.
 *
 * One context for both, at whatever rate the device has: some browsers refuse nodes from contexts of
 * different rates, and one clock for both directions makes the counts comparable.
 *
 * Events: `batch` (detail: {pcm, level, atS}) every 20 ms of captured audio, `output` (detail: {samples,
 * frame, rateHz}) of what came out of the loudspeaker, `played` (detail: Played) while a reply is heard, `lost` when the microphone is taken away, `hushed` (detail: boolean) when the
 * system silences it or lets it be heard again, `sample-ended`, `sound` (detail: boolean) when the
 * browser silences us or lets us be heard again, `instead` (detail: 'microphone' or 'speaker') when the
 * device that was chosen is not there and another one is used.
 */

import { Capture } from './capture.js';
import { CaptureError } from './microphone.js';
import { Playback } from './playback.js';

/**
 * @typedef {object} Played
 * @property {string} itemId
 * @property {number} playedMs of that item, as far as it has left the loudspeaker
 * @property {number} level
 * @property {boolean} finished
 *
 * @typedef {import('./playback.js').Heard} Heard
 *
 * @typedef {import('./microphone.js').Choice & {speaker: string}} Choice
 *
 * @typedef {object} Sink the part of an AudioContext that not every browser has
 * @property {(id: string) => Promise<void>} [setSinkId]
 * @property {string} [sinkId]
 */

/** A browser that will let us play has started by then. */
const RESUME_GRACE_MS = 500;

export class AudioDevices extends EventTarget {
  constructor() {
    super();
    /** Which context `clockS` is of: each begins at zero. */
    this.clockNumber = 0;
    /** @private @type {AudioContext | null} */
    this.context = null;
    /** @private @type {Capture | null} */
    this.capture = null;
    /** @private @type {Playback | null} */
    this.playback = null;
    /** @private @type {Promise<void> | null} */
    this.opening = null;
    /** @private */
    this.muted = false;
    /** Which devices to use, and what to do to the sound. Set it by `choose`. @type {Choice} */
    this.choice = {
      microphone: '',
      speaker: '',
      echoCancellation: true,
      noiseSuppression: true,
      autoGainControl: true,
    };
  }

  get hasMicrophone() {
    return this.capture?.hasMicrophone ?? false;
  }

  /** The time on which both directions count; null while there is no audio. */
  get clockS() {
    return this.context?.currentTime ?? null;
  }

  /** Whether a reply has audio that was not heard yet. */
  get speaking() {
    return this.playback?.active ?? false;
  }

  /** The device's rate, times the loudspeaker ran dry, and audio it had no room for. */
  get figures() {
    return {
      rateHz: this.context?.sampleRate ?? 0,
      underruns: this.playback?.underruns ?? 0,
      droppedMs: this.playback?.droppedMs ?? 0,
    };
  }

  /**
   * Start the context; safe to call again. Call it from a user's gesture, or browsers stay silent.
   * @throws {CaptureError} where the page's address does not allow audio
   */
  async open() {
    if (!globalThis.isSecureContext || !globalThis.AudioWorkletNode) {
      throw new CaptureError('insecure-context');
    }
    void this.context?.resume();
    this.opening ??= this.start();
    try {
      await this.opening;
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  /** @private */
  async start() {
    const context = new AudioContext({ latencyHint: 'interactive' });
    this.context = context;
    this.clockNumber += 1;
    void context.resume();
    void this.useSpeaker();
    const [capture, playback] = await Promise.all([
      Capture.create(context),
      Playback.create(context),
    ]);
    this.capture = capture;
    this.playback = playback;
    capture.addEventListener('batch', (event) => this.pass(event));
    capture.addEventListener('lost', (event) => this.pass(event));
    capture.addEventListener('hushed', (event) => this.pass(event));
    capture.addEventListener('sample-ended', (event) => this.pass(event));
    playback.addEventListener('progress', (event) => this.onPlayed(event, false));
    playback.addEventListener('finished', (event) => this.onPlayed(event, true));
    playback.addEventListener('output', (event) => this.pass(event));
    context.addEventListener('statechange', () => this.reportSound());
    setTimeout(() => this.reportSound(), RESUME_GRACE_MS);
  }

  /**
   * Use these devices from now on; in the middle of a call as well, which does not notice.
   * @param {Choice} choice
   * @throws {CaptureError} the microphone in use stays in use then
   */
  async choose(choice) {
    const { speaker, ...microphone } = choice;
    const { speaker: oldSpeaker, ...oldMicrophone } = this.choice;
    this.choice = choice;
    if (speaker !== oldSpeaker) await this.useSpeaker();
    const isSame = JSON.stringify(microphone) === JSON.stringify(oldMicrophone);
    if (this.hasMicrophone && !isSame) await this.openMicrophone();
  }

  /** @throws {CaptureError} */
  async openMicrophone() {
    await this.open();
    const isChosen = (await this.capture?.openMicrophone(this.choice)) ?? true;
    this.capture?.mute(this.muted);
    if (!isChosen) this.dispatchEvent(new CustomEvent('instead', { detail: 'microphone' }));
  }

  /** Let go of the microphone; replies go on being heard. */
  closeMicrophone() {
    this.capture?.closeMicrophone();
  }

  /** @param {boolean} muted the microphone hears silence, until it is told otherwise */
  mute(muted) {
    this.muted = muted;
    this.capture?.mute(muted);
  }

  /** @private */
  async useSpeaker() {
    const sink = /** @type {Sink | null} */ (this.context);
    if (!sink?.setSinkId || (sink.sinkId ?? '') === this.choice.speaker) return;
    try {
      await sink.setSinkId(this.choice.speaker);
    } catch {
      if (this.context !== sink) return; // the call has ended meanwhile
      this.dispatchEvent(new CustomEvent('instead', { detail: 'speaker' }));
    }
  }

  /**
   * @param {string} url of a recording to use in place of the microphone
   * @throws {CaptureError}
   */
  async playSample(url) {
    await this.open();
    await this.capture?.playSample(url);
  }

  /** Send nothing until the next source is opened. */
  stopCapture() {
    if (this.capture) this.capture.running = false;
  }

  /**
   * @param {string} itemId
   * @param {Float32Array} samples at the wire's rate
   */
  play(itemId, samples) {
    this.playback?.push(itemId, samples);
  }

  /** @param {string} itemId whose audio is complete */
  endReply(itemId) {
    this.playback?.end(itemId);
  }

  /** @param {string} itemId of the reply to be played quietly */
  duck(itemId) {
    this.playback?.duck(itemId);
  }

  /** Play at full level again. */
  unduck() {
    this.playback?.unduck();
  }

  /** @returns {Promise<Heard[]>} the replies that were cut */
  async flush() {
    return this.playback?.active ? this.playback.flush() : [];
  }

  /** A new session may use the ids of replies that were cut in the last one. */
  forgetReplies() {
    this.playback?.cut.clear();
  }

  /** Ask the browser again to let us be heard. */
  async resume() {
    await this.context?.resume();
  }

  /** Let go of everything; `open` starts afresh. */
  async close() {
    const { context, capture, playback } = this;
    this.opening = null;
    this.context = null;
    this.capture = null;
    this.playback = null;
    capture?.close();
    playback?.close();
    await context?.close();
  }

  /** @private */
  reportSound() {
    if (!this.context || this.context.state === 'closed') return;
    this.dispatchEvent(new CustomEvent('sound', { detail: this.context.state === 'running' }));
  }

  /**
   * What the worklet counts has been handed to the device; it is heard a device latency later. A
   * finished item is reported whole, because everything of it will be heard.
   * @private
   * @param {Event} event
   * @param {boolean} finished
   */
  onPlayed(event, finished) {
    const { itemId, playedMs, level } = /** @type {CustomEvent} */ (event).detail;
    const latencyS = this.context?.outputLatency || this.context?.baseLatency || 0;
    const heardMs = finished ? playedMs : Math.max(0, playedMs - 1000 * latencyS);
    const detail = { itemId, playedMs: heardMs, level, finished };
    this.dispatchEvent(new CustomEvent('played', { detail }));
  }

  /**
   * @private
   * @param {Event} event
   */
  pass(event) {
    const detail = /** @type {CustomEvent} */ (event).detail;
    this.dispatchEvent(new CustomEvent(event.type, { detail }));
  }
}

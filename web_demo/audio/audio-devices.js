/**
 * The browser's audio: one context, the microphone into it, the loudspeaker out of it.
 *
 * One context for both, at whatever rate the device has: some browsers refuse nodes from contexts
 * of different rates, and one clock for both directions makes the counts comparable.
 *
 * Events: `batch` (detail: {pcm, level, atS}) every 20 ms of captured audio, `output` (detail:
 * {samples, frame, rateHz}): audio that left the loudspeaker, `played` (detail: Played) while a
 * reply is played, `lost` when the microphone is removed, `hushed` (detail: boolean) when the
 * system mutes or unmutes it, `sample-ended`, `sound` (detail: boolean) when the browser blocks
 * or allows output, `instead` (detail: 'microphone' or 'speaker') when the chosen device is
 * missing and another one is used, `track` when `track` is another one, `remote` (detail: {level})
 * every 20 ms of a remote stream.
 */

import { Capture } from './capture.js';
import { CaptureError } from './microphone.js';
import { WIRE_RATE_HZ } from './pcm.js';
import { Playback } from './playback.js';
import { RemoteAudio } from '../webrtc/remote-audio.js';

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

/** Root mean square of what counts as sound: a codec's silence is not quite zero. */
const SILENT = 1e-4;

/** Time within which a browser that allows output has started the context. */
const RESUME_GRACE_MS = 500;

export class AudioDevices extends EventTarget {
  constructor() {
    super();
    /** Number of the audio context that `clockS` belongs to: each context starts at zero. */
    this.clockNumber = 0;
    /** @private @type {AudioContext | null} */
    this.context = null;
    /** @private @type {Capture | null} */
    this.capture = null;
    /** @private @type {Playback | null} */
    this.playback = null;
    /** @private @type {RemoteAudio | null} */
    this.remote = null;
    /** @private @type {Promise<void> | null} */
    this.opening = null;
    /** @private */
    this.muted = false;
    /** Chosen devices and audio processing. Set by `choose`. @type {Choice} */
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

  /** What is captured, as a track; null: nothing is. */
  get track() {
    return this.capture?.track ?? null;
  }

  /** Time of the audio context, shared by both directions, in s; null without a context. */
  get clockS() {
    return this.context?.currentTime ?? null;
  }

  /** True while a reply has audio that has not been played. */
  get speaking() {
    return this.playback?.active ?? false;
  }

  /**
   * Rate of the device, number of underruns, and audio dropped because the playback buffer was
   * full.
   */
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
    if (this.context !== context) {
      capture.close(); // the call has ended meanwhile
      playback.close();
      return;
    }
    this.capture = capture;
    this.playback = playback;
    capture.addEventListener('batch', (event) => this.pass(event));
    capture.addEventListener('lost', (event) => this.pass(event));
    capture.addEventListener('hushed', (event) => this.pass(event));
    capture.addEventListener('sample-ended', (event) => this.pass(event));
    capture.addEventListener('track', (event) => this.pass(event));
    playback.addEventListener('progress', (event) => this.onPlayed(event, false));
    playback.addEventListener('finished', (event) => this.onPlayed(event, true));
    playback.addEventListener('output', (event) => this.pass(event));
    context.addEventListener('statechange', () => this.reportSound());
    setTimeout(() => this.reportSound(), RESUME_GRACE_MS);
  }

  /**
   * Switch to these devices; works during a call without interrupting it.
   * @param {Choice} choice
   * @throws {CaptureError} the current microphone then stays in use
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

  /** Release the microphone; replies are still played. */
  closeMicrophone() {
    this.capture?.closeMicrophone();
  }

  /** @param {boolean} muted true: the microphone sends silence */
  mute(muted) {
    this.muted = muted;
    this.capture?.mute(muted);
  }

  /**
   * Play a remote stream in place of the one before.
   * @param {MediaStream | null} stream null: none
   */
  playRemote(stream) {
    this.remote?.close();
    this.remote = null;
    if (!stream || !this.context) return;
    const remote = new RemoteAudio(this.context, stream);
    remote.addEventListener('batch', (event) => this.onRemote(event));
    remote.addEventListener('blocked', () => this.reportSound());
    // Where it is missing, the context has said so.
    if (this.choice.speaker) void remote.useSpeaker(this.choice.speaker).catch(() => {});
    this.remote = remote;
  }

  /**
   * @private
   * @param {Event} event
   */
  onRemote(event) {
    const { pcm, level, atS } = /** @type {CustomEvent} */ (event).detail;
    this.dispatchEvent(new CustomEvent('remote', { detail: { level } }));
    if (level < SILENT) return;
    const samples = Float32Array.from(pcm, (/** @type {number} */ sample) => sample / 32_768);
    const frame = Math.round(atS * WIRE_RATE_HZ) - samples.length;
    const detail = { samples, frame, rateHz: WIRE_RATE_HZ };
    this.dispatchEvent(new CustomEvent('output', { detail }));
  }

  /** @private */
  async useSpeaker() {
    void this.remote?.useSpeaker(this.choice.speaker).catch(() => {});
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

  /** Stop sending until the next source is opened. */
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

  /** Ask the browser again to resume output. */
  async resume() {
    void this.remote?.resume();
    await this.context?.resume();
  }

  /** Release all devices; `open` starts again. */
  async close() {
    const { context, capture, playback } = this;
    this.playRemote(null);
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
    const detail = this.context.state === 'running' && !this.remote?.isBlocked;
    this.dispatchEvent(new CustomEvent('sound', { detail }));
  }

  /**
   * Convert the worklet's counts to `played` events. Counted samples have been handed to the device
   * and are audible one output latency later. A finished item is reported as complete, because all
   * of it will be played.
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

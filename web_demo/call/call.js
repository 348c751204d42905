/**
 * One call: couples microphone, socket and loudspeaker.
 *
 * Interrupting: on `speech_started` the loudspeaker is flushed before anything else, then the
 * server gets how much of each cut reply was played. The server decides, because only it can
 * distinguish an interruption from a cough or a backchannel. Meanwhile the reply is ducked:
 * `halfsec.duck`, and `halfsec.unduck` when it was no interruption. Over WebRTC the server plays:
 * it stops by itself, cuts the history at what it sent, and its events say what was heard.
 *
 * Events: `phase` (detail: Phase), `connection` (detail: Status) while that is the newest, `problem` and `solved` (detail:
 * {code, text}, codes as in `problems.js`), `level` (detail: {source, level}), `resumed` when the
 * call goes on after the connection was lost, `renewed` when a new connection lost the
 * conversation, `audio` (detail: {itemId, samples}) when audio of a reply arrives, `played`
 * (detail: {itemId, playedMs}). `conversation` holds the messages.
 */

import { AudioDevices } from '../audio/audio-devices.js';
import { samplesFromBase64 } from './base64.js';
import { Conversation } from './conversation.js';
import { CaptureError } from '../audio/microphone.js';
import { WIRE_RATE_HZ } from '../audio/pcm.js';
import { CHANGES, phaseOf } from './call-phase.js';
import { PlaybackReports } from './playback-reports.js';
import { RemoteReplies } from '../webrtc/remote-replies.js';
import { SessionSettings } from './session-settings.js';
import { Uplink } from './uplink.js';

/**
 * @typedef {import('./call-phase.js').Phase} Phase
 * @typedef {import('./call-phase.js').Work} Work
 * @typedef {import('./realtime-client.js').RealtimeClient} RealtimeClient
 * @typedef {import('./realtime-client.js').RealtimeEvent} RealtimeEvent
 * @typedef {import('./realtime-client.js').Status} Status
 */

/** Silence sent after a recorded question: the server needs it to detect the end of the turn. */
const LINGER_MS = 15_000;

/** Interval of `played` over WebRTC, as the playback worklet has it. */
const REMOTE_EVERY_MS = 50;

/** Error codes that only mean "too late": the reply had already ended. */
const HARMLESS = new Set([
  'response_cancel_not_active',
  'item_truncate_invalid_item_id',
  'input_audio_buffer_commit_empty',
]);

export class Call extends EventTarget {
  /**
   * @param {RealtimeClient} client
   * @param {import('./preferences.js').PreferenceStore} preferences
   */
  constructor(client, preferences) {
    super();
    this.client = client;
    this.settings = new SessionSettings(client, preferences);
    this.uplink = new Uplink(client);
    /** Push-to-talk state. */
    this.pushToTalk = this.uplink.pushToTalk;
    this.devices = new AudioDevices();
    this.conversation = new Conversation();
    this.reports = new PlaybackReports(client);
    /** @private */
    this.remote = new RemoteReplies();
    /** @private */
    this.remoteAtMs = 0;
    /** @private Recorded question to be played once the connection is open: a track has no past. */
    this.sampleUrl = '';
    /** @type {Phase} */
    this.phase = 'off';
    /** @private @type {Work} */
    this.is = { asking: false, hearing: false, thinking: false, responding: false };
    /** @private */
    this.wasLost = false;
    /** @private What was heard of the reply that the loss of the connection cut. @type {{itemId: string, playedMs: number}[]} */
    this.cutByLoss = [];
    /** @private @type {string[]} */
    this.unsent = [];
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.linger = undefined;
    /** @private Times that the user hung up: what was awaited across one is of a call that is over. */
    this.numEnded = 0;
    this.listen();
  }

  /** Open the microphone, then the connection. Call it from a user's gesture. */
  async startTalking() {
    if (this.is.asking) return;
    const { numEnded } = this;
    this.update({ asking: true });
    try {
      await this.devices.openMicrophone();
      if (numEnded !== this.numEnded) return;
      clearTimeout(this.linger);
      this.conversation.silent = false;
      this.client.connect();
    } catch (error) {
      if (numEnded !== this.numEnded) return;
      this.fail(error);
    }
    this.update({ asking: false });
  }

  /**
   * Ask a recorded question in place of the microphone.
   * @param {string} url
   */
  async playSample(url) {
    const { numEnded } = this;
    const waits = this.client.status.state !== 'open' && this.client.willUseTracks;
    this.sampleUrl = waits ? url : '';
    try {
      if (waits) await this.devices.open();
      else await this.devices.playSample(url);
      if (numEnded !== this.numEnded) return;
      if (!waits) this.pushToTalk.press(); // the sample ends push-to-talk when it has been played
      clearTimeout(this.linger);
      this.conversation.silent = false;
      this.client.connect();
    } catch (error) {
      if (numEnded === this.numEnded) this.fail(error);
    }
  }

  /**
   * Send a typed message. Works without audio; the answer is then shown as text.
   * @param {string} text
   */
  async sendText(text) {
    const { numEnded } = this;
    try {
      await this.devices.open();
    } catch {
      this.conversation.silent = true;
    }
    await this.interrupt();
    if (numEnded !== this.numEnded) return;
    this.unsent.push(text);
    if (this.client.status.state !== 'open') this.conversation.waits(this.unsent);
    this.update({ thinking: true });
    if (this.client.status.state === 'open') this.sendUnsent();
    else this.client.connect();
  }

  /** Cancel the current reply without speaking. */
  async interrupt() {
    if (this.remote.isPlaying) this.client.clearOutput();
    else if (this.is.responding) this.client.cancelResponse();
    await this.silence();
  }

  /** @param {import('../audio/audio-devices.js').Choice} choice */
  async chooseDevices(choice) {
    try {
      await this.devices.choose(choice);
    } catch (error) {
      this.fail(error);
    }
  }

  /**
   * Switch to another agent, in a new call.
   * @param {string} url of its voice socket
   */
  async callAnother(url) {
    const { numEnded } = this;
    const isCalling = this.client.status.state !== 'closed';
    this.client.close();
    this.client.url = url;
    if (!isCalling) return;
    await this.silence();
    if (numEnded !== this.numEnded) return;
    this.conversation.reset();
    this.devices.forgetReplies();
    this.forget();
    this.emit('renewed', null);
    this.client.connect();
  }

  /** Release the microphone; the call continues without it. */
  dropMicrophone() {
    this.pushToTalk.release();
    this.devices.stopCapture();
    this.devices.closeMicrophone();
    this.update({ hearing: false });
  }

  /** Hang up and release every device. A prompt for the microphone may still be open. */
  async end() {
    this.numEnded += 1;
    this.is = { ...this.is, asking: false };
    this.sampleUrl = '';
    clearTimeout(this.linger);
    this.client.close();
    this.conversation.reset();
    this.forget();
    await this.devices.close();
    this.update({});
  }

  /** @private */
  listen() {
    const { client, devices, uplink } = this;
    uplink.addEventListener('slow', () => this.emit('problem', { code: 'slow-connection' }));
    uplink.addEventListener('taken', () => this.onFloorTaken());
    uplink.addEventListener('yielded', (event) => {
      this.update({ hearing: false, thinking: detailOf(event) });
    });
    client.addEventListener('status', (event) => void this.onStatus(detailOf(event)));
    client.addEventListener('event', (event) => this.onServerEvent(detailOf(event)));
    devices.addEventListener('batch', (event) => this.onBatch(detailOf(event)));
    devices.addEventListener('played', (event) => this.onPlayed(detailOf(event)));
    devices.addEventListener('remote', (event) => this.onRemoteLevel(detailOf(event).level));
    devices.addEventListener('sound', (event) => {
      this.emit(detailOf(event) ? 'solved' : 'problem', { code: 'sound-suspended' });
    });
    devices.addEventListener('lost', () => {
      this.fail(new CaptureError('microphone-lost'));
      this.dropMicrophone();
    });
    devices.addEventListener('sample-ended', () => {
      this.pushToTalk.release();
      if (!devices.hasMicrophone) this.linger = setTimeout(() => devices.stopCapture(), LINGER_MS);
    });
    this.conversation.addEventListener('removed', () => this.update({ thinking: false }));
  }

  /** @private Whoever takes the floor, with push-to-talk, interrupts. */
  onFloorTaken() {
    if (this.is.thinking && !this.is.responding) this.client.cancelResponse();
    void this.interrupt();
    this.update({ hearing: true, thinking: false });
  }

  /**
   * @private
   * @param {Status} status
   */
  async onStatus(status) {
    if (status.state === 'open') this.onOpen(status.resumed ?? false);
    else if (status.state !== 'connecting') await this.onGone(status);
    // Another connection may have been begun meanwhile, which this is not the state of.
    if (this.client.status === status) this.emit('connection', status);
    this.update({});
  }

  /**
   * @private
   * @param {boolean} resumed
   */
  onOpen(resumed) {
    this.conversation.isRemote = this.client.usesTracks;
    this.settings.apply(resumed);
    const cut = this.cutByLoss.splice(0);
    if (resumed) {
      for (const { itemId, playedMs } of cut) this.client.truncate(itemId, playedMs);
      this.emit('resumed', null);
    } else if (this.wasLost) {
      this.conversation.reset();
      this.devices.forgetReplies();
      this.emit('renewed', null);
    }
    this.wasLost = false;
    this.uplink.flush();
    this.sendUnsent();
    if (this.sampleUrl) void this.playSample(this.sampleUrl);
  }

  /**
   * @private
   * @param {Status} status
   */
  async onGone(status) {
    this.wasLost ||= status.state === 'waiting';
    this.forget();
    const heard = await this.silence();
    if (status.resumable) {
      // Where the call has gone on meanwhile, `silence` has sent it.
      if (this.client.status.state !== 'open') this.cutByLoss.push(...heard);
    } else {
      this.wasLost = status.state === 'waiting';
      this.cutByLoss = [];
      this.conversation.reset();
    }
    // The server ended the call for good: release the microphone.
    if (status.code && status.state === 'closed') await this.devices.close();
  }

  /**
   * @private
   * @param {RealtimeEvent} event
   */
  onServerEvent(event) {
    if (event.type === 'response.output_audio.delta') this.onAudio(event);
    else if (event.type === 'error') this.onError(event.error);
    else this.conversation.handle(event);
    if (this.client.usesTracks) this.onRemoteEvent(event);
    const change = CHANGES[event.type];
    if (change) this.update(change);
    if (event.type === 'input_audio_buffer.speech_started') void this.silence();
    if (event.type === 'halfsec.duck') this.devices.duck(event.item_id);
    if (event.type === 'halfsec.unduck') this.devices.unduck();
    if (event.type === 'response.output_audio.done') this.devices.endReply(event.item_id);
    if (event.type === 'response.done') this.onResponseDone(event.response);
    // A reply to input from before the caller pressed push-to-talk again.
    if (event.type === 'response.created' && this.pushToTalk.held) void this.interrupt();
  }

  /**
   * @private
   * @param {RealtimeEvent} event
   */
  onAudio({ item_id: itemId, delta }) {
    const samples = samplesFromBase64(delta);
    this.conversation.addAudio(itemId, (samples.length * 1000) / WIRE_RATE_HZ);
    if (!this.pushToTalk.held) this.devices.play(itemId, samples);
    this.emit('audio', { itemId, samples });
  }

  /**
   * @private
   * @param {RealtimeEvent} event of a call by WebRTC
   */
  onRemoteEvent(event) {
    const heard = this.remote.take(event, performance.now());
    if (heard) this.onRemoteHeard(heard, 0);
    // The server knows to the word what was heard of it.
    if (event.type === 'conversation.item.truncated')
      this.client.send({ type: 'conversation.item.retrieve', item_id: event.item_id });
  }

  /**
   * @private
   * @param {number} level of the remote stream
   */
  onRemoteLevel(level) {
    const now = performance.now();
    if (now - this.remoteAtMs < REMOTE_EVERY_MS) return;
    this.remoteAtMs = now;
    const heard = this.remote.progress(now);
    if (heard) this.onRemoteHeard(heard, level);
  }

  /**
   * @private
   * @param {import('../webrtc/remote-replies.js').Heard} heard
   * @param {number} level
   */
  onRemoteHeard({ itemId, playedMs, state }, level) {
    const finished = state !== 'playing';
    if (state === 'cut') this.conversation.cut(itemId, playedMs);
    this.onPlayed({ itemId, playedMs, level, finished });
  }

  /**
   * @private
   * @param {{status: string, output?: {id: string}[], status_details?: any}} response
   */
  onResponseDone(response) {
    for (const { id } of response.output ?? []) this.devices.endReply(id);
    if (response.status === 'failed') {
      const text = response.status_details?.error?.message;
      this.emit('problem', { code: 'reply-failed', text });
    }
  }

  /**
   * @private
   * @param {{code?: string, message: string, event_id?: string | null}} error
   */
  onError(error) {
    if (!HARMLESS.has(error.code ?? '') && !this.settings.isOurs(error)) {
      this.emit('problem', { code: 'server-error', text: error.message });
    }
  }

  /**
   * @private
   * @param {{pcm: Int16Array, level: number}} batch
   */
  onBatch({ pcm, level }) {
    this.uplink.add(pcm, !this.wasLost);
    this.emit('level', { source: 'caller', level });
  }

  /**
   * @private
   * @param {import('../audio/audio-devices.js').Played} played
   */
  onPlayed({ itemId, playedMs, level, finished }) {
    this.reports.played(itemId, playedMs, finished);
    this.conversation.played(itemId, playedMs, finished);
    this.emit('played', { itemId, playedMs });
    this.emit('level', { source: 'agent', level: finished ? 0 : level });
    this.update({ thinking: false });
  }

  /**
   * Stop playback and report to the server how much was played.
   * @private
   * @returns {Promise<{itemId: string, playedMs: number}[]>}
   */
  async silence() {
    this.devices.unduck();
    const heard = await this.devices.flush();
    for (const { itemId, playedMs } of heard) {
      this.reports.played(itemId, playedMs, true);
      this.client.truncate(itemId, playedMs);
      this.conversation.cut(itemId, playedMs);
    }
    this.emit('level', { source: 'agent', level: 0 });
    this.update({});
    return heard;
  }

  /** @private */
  sendUnsent() {
    for (const text of this.unsent.splice(0)) this.client.sendText(text);
    this.conversation.waits([]);
  }

  /** @private */
  forget() {
    this.uplink.forget();
    this.remote.reset();
    if (this.client.status.state !== 'open') this.devices.playRemote(null);
    const thinking = this.unsent.length > 0;
    this.is = { ...this.is, hearing: this.pushToTalk.held, thinking, responding: false };
  }

  /**
   * @private
   * @param {unknown} error
   */
  fail(error) {
    if (error instanceof CaptureError) this.emit('problem', { code: error.code });
    else this.emit('problem', { code: 'audio-failed', text: String(error) });
  }

  /**
   * @private
   * @param {Partial<Work>} change
   */
  update(change) {
    this.is = { ...this.is, ...change };
    const { hasMicrophone } = this.devices;
    const speaking = this.devices.speaking || this.remote.isPlaying;
    const { state } = this.client.status;
    const phase = phaseOf(this.is, state, { speaking, hasMicrophone });
    if (phase === this.phase) return;
    this.phase = phase;
    this.emit('phase', phase);
  }

  /**
   * @private
   * @param {string} type
   * @param {unknown} detail
   */
  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/**
 * @param {Event} event
 * @returns {any}
 */
function detailOf(event) {
  return /** @type {CustomEvent} */ (event).detail;
}

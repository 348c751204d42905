/**
 * Audio to the server: all of it with an open microphone, only while the key is held with
 * push-to-talk.
 *
 * With push-to-talk the session has no turn detection, so the end of a turn costs no wait:
 * releasing sends `input_audio_buffer.commit` and `response.create`, and the server transcribes and
 * answers at once. An accidental press is withdrawn by `input_audio_buffer.clear`.
 *
 * Over WebRTC the audio is a track and not sent here; push-to-talk switches it (`webrtc/`). The
 * server hears silence while nothing comes, so what it has kept is cleared now and then. A press
 * that comes before the end of the last turn was sent there goes on with that turn.
 *
 * Events: `slow` when the socket's buffer is full, `taken` and `yielded` (detail: true when there
 * is speech to answer) when push-to-talk is pressed and released.
 */

import { WIRE_RATE_HZ } from '../audio/pcm.js';
import { PushToTalk } from './push-to-talk.js';

/**
 * Audio kept while the socket opens: 1.2 s in batches of 20 ms. More would not fit into the socket
 * at once, and look like a slow connection.
 */
const MAX_EARLY_BATCHES = 60;

/** Interval of clearing: the server refuses audio after ten minutes without a commit. */
const CLEAR_EVERY_MS = 60_000;

export class Uplink extends EventTarget {
  /** @param {import('./realtime-client.js').RealtimeClient} client */
  constructor(client) {
    super();
    /** @private */
    this.client = client;
    this.pushToTalk = new PushToTalk({
      begin: () => this.take(),
      end: (said) => this.yield(said),
    });
    /** Milliseconds of audio sent. */
    this.sentMs = 0;
    /** @private @type {Int16Array[]} */
    this.early = [];
    /** @private What is early is a whole turn. */
    this.isEarlyTurn = false;
    /** @private What is held goes on with a turn that was not committed yet. */
    this.goesOn = false;
    /** @private Time since the server's audio was committed or cleared. */
    this.idleMs = 0;
  }

  /**
   * @param {Int16Array} pcm the next 20 ms
   * @param {boolean} canWait keep it while the socket opens
   */
  add(pcm, canWait) {
    const { status: { state }, usesTracks } = this.client;
    const ms = (pcm.length * 1000) / WIRE_RATE_HZ;
    this.pushToTalk.batch(ms, () => {
      if (state === 'open') this.send(pcm);
      else if (state === 'connecting' && canWait && !usesTracks) this.early.push(pcm);
    });
    if (usesTracks && this.pushToTalk.enabled) this.keepEmpty(ms);
    this.early.splice(0, this.early.length - MAX_EARLY_BATCHES);
  }

  /** Send the kept audio: the connection is open. */
  flush() {
    for (const pcm of this.early.splice(0)) this.send(pcm);
    if (this.isEarlyTurn) this.client.commitAudio();
    this.isEarlyTurn = false;
  }

  /** Drop the kept audio, and what is known of the server's. */
  forget() {
    this.early = [];
    this.isEarlyTurn = false;
    this.goesOn = false;
  }

  /**
   * @private
   * @param {number} ms passed
   */
  keepEmpty(ms) {
    this.idleMs = this.pushToTalk.held ? 0 : this.idleMs + ms;
    if (this.idleMs < CLEAR_EVERY_MS) return;
    this.idleMs = 0;
    this.client.clearAudio();
  }

  /** @private */
  take() {
    this.dispatchEvent(new Event('taken'));
    this.forget();
    this.goesOn = this.client.withdrawCommit();
    if (!this.goesOn) this.client.clearAudio(); // audio that a broken connection left there
  }

  /**
   * @private
   * @param {boolean} isLong the key was held for long enough
   */
  yield(isLong) {
    const said = isLong || this.goesOn;
    this.goesOn = false;
    const isOpen = this.client.status.state === 'open';
    this.isEarlyTurn = said && !isOpen && this.early.length > 0;
    if (!said) this.early = [];
    if (isOpen && said) this.client.commitAudio();
    else this.client.clearAudio();
    const detail = said && (isOpen || this.isEarlyTurn);
    this.dispatchEvent(new CustomEvent('yielded', { detail }));
  }

  /**
   * @private
   * @param {Int16Array} pcm
   */
  send(pcm) {
    const { droppedMs } = this.client;
    if (this.client.appendAudio(pcm)) this.sentMs += (pcm.length * 1000) / WIRE_RATE_HZ;
    else if (this.client.droppedMs > droppedMs) this.dispatchEvent(new Event('slow'));
  }
}

/**
 * The caller's sound on its way to the server: all of it with an open microphone, what is said while
 * the key is held with push-to-talk.
 *
 * With push-to-talk the session has no turn detection, so the end of a turn costs no wait: letting go
 * sends `input_audio_buffer.commit` and `response.create`, and the server transcribes and answers at
 * once. A slip of the finger is taken back by `input_audio_buffer.clear`.
 *
 * Events: `slow` when the connection takes no more, `taken` and `yielded` (detail: whether there is
 * something to answer) when the caller takes the floor with push-to-talk and gives it back.
 */

import { WIRE_RATE_HZ } from '../audio/pcm.js';
import { PushToTalk } from './push-to-talk.js';

/**
 * 1.2 s in batches of 20 ms: said while the socket was still opening, sent when it is open. More would
 * not fit into the socket at once, and look like a slow connection.
 */
const MAX_EARLY_BATCHES = 60;

export class Uplink extends EventTarget {
  /** @param {import('./realtime-client.js').RealtimeClient} client */
  constructor(client) {
    super();
    /** @private */
    this.client = client;
    this.floor = new PushToTalk({
      begin: () => this.take(),
      end: (said) => this.yield(said),
    });
    /** Milliseconds of sound sent. */
    this.sentMs = 0;
    /** @private @type {Int16Array[]} */
    this.early = [];
    /** @private What is early is a whole turn. */
    this.isEarlyTurn = false;
  }

  /**
   * @param {Int16Array} pcm the next 20 ms
   * @param {boolean} canWait the line is being opened for what is said now
   */
  add(pcm, canWait) {
    const { state } = this.client.status;
    this.floor.batch((pcm.length * 1000) / WIRE_RATE_HZ, () => {
      if (state === 'open') this.send(pcm);
      else if (state === 'connecting' && canWait) this.early.push(pcm);
    });
    this.early.splice(0, this.early.length - MAX_EARLY_BATCHES);
  }

  /** The line is open. */
  flush() {
    for (const pcm of this.early.splice(0)) this.send(pcm);
    if (this.isEarlyTurn) this.client.commitAudio();
    this.isEarlyTurn = false;
  }

  /** What waits is of no use any more. */
  forget() {
    this.early = [];
    this.isEarlyTurn = false;
  }

  /** @private */
  take() {
    this.dispatchEvent(new Event('taken'));
    this.forget();
    this.client.clearAudio(); // of what a break of the connection left there
  }

  /**
   * @private
   * @param {boolean} said
   */
  yield(said) {
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
    if (this.client.appendAudio(pcm)) this.sentMs += (pcm.length * 1000) / WIRE_RATE_HZ;
    else this.dispatchEvent(new Event('slow'));
  }
}

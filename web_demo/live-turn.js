/** Couples the bar of the running turn to a call and to the list in which it stands. */

import { FirstSound } from './first-sound.js';
import { LiveBar } from './live-bar.js';
import { TurnMarks } from './turn-marks.js';

/**
 * @typedef {import('./call.js').Call} Call
 * @typedef {import('./realtime.js').RealtimeEvent} RealtimeEvent
 * @typedef {import('./transcript.js').Transcript} Transcript
 */

/** Replies that are not heard, or not to their end. */
const FAILED = new Set(['failed', 'cancelled']);

export class LiveTurn {
  /**
   * @param {Call} call
   * @param {Transcript} transcript
   */
  constructor(call, transcript) {
    /** @private */
    this.call = call;
    /** @private */
    this.transcript = transcript;
    /** @private */
    this.marks = new TurnMarks();
    /** @private */
    this.sounds = new FirstSound();
    /** @private */
    this.bar = new LiveBar(this.marks, (bar) => transcript.showAtEnd(bar));
    const { client, conversation } = call;
    client.addEventListener('event', (event) => this.onEvent(detailOf(event)));
    client.addEventListener('status', (event) => {
      if (detailOf(event).state !== 'open') this.reset();
    });
    call.addEventListener('audio', (event) => {
      const { itemId, samples } = detailOf(event);
      this.sounds.arrived(itemId, samples);
    });
    call.addEventListener('played', (event) => {
      const { itemId, playedMs } = detailOf(event);
      const heardMs = this.sounds.played(itemId, playedMs, performance.now());
      if (heardMs !== null) this.onHeard(itemId, heardMs);
    });
    conversation.addEventListener('turn', (event) => {
      this.marks.over(detailOf(event).turn.turn);
      this.bar.update();
    });
  }

  /**
   * @private
   * @param {RealtimeEvent} event
   */
  onEvent(event) {
    if (event.type === 'halfsec.mark') {
      const nowMs = performance.now();
      this.marks.take(/** @type {any} */ (event), nowMs);
      // Without a loudspeaker a reply is read as soon as it is sent.
      if (this.call.conversation.silent && event.name === 'released') this.marks.over(event.turn);
    } else if (event.type === 'response.done' && FAILED.has(event.response.status)) {
      this.marks.over(Infinity);
    } else return;
    this.bar.update();
  }

  /**
   * @private
   * @param {string} itemId
   * @param {number} heardMs by the page's clock
   */
  onHeard(itemId, heardMs) {
    this.marks.heard(heardMs);
    const bar = this.bar.finish();
    if (bar) this.transcript.showBelow(itemId, bar);
    this.marks.over(Infinity);
  }

  /** @private The connection is gone: what was under way is not known any more. */
  reset() {
    this.marks.reset();
    this.bar.update();
  }
}

/**
 * @param {Event} event
 * @returns {any}
 */
function detailOf(event) {
  return /** @type {CustomEvent} */ (event).detail;
}

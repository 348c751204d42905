/** Connects the bar of the running turn to the call and to the transcript. */

import { FirstSound } from '../audio/first-sound.js';
import { LiveTurnBar } from './live-turn-bar.js';
import { TurnTiming } from '../call/turn-timing.js';

/**
 * @typedef {import('../call/call.js').Call} Call
 * @typedef {import('../call/event-buffer.js').Moment} Moment
 * @typedef {import('../call/realtime-client.js').RealtimeEvent} RealtimeEvent
 * @typedef {import('./transcript.js').Transcript} Transcript
 */

/** Final states of replies that are not played completely. */
const FAILED = new Set(['failed', 'cancelled']);

export class LiveTurn {
  /**
   * @param {Call} call
   * @param {Transcript} transcript
   * @param {EventTarget} events as in `showCall`
   */
  constructor(call, transcript, events) {
    /** @private */
    this.call = call;
    /** @private */
    this.transcript = transcript;
    /** @private */
    this.marks = new TurnTiming();
    /** @private */
    this.sounds = new FirstSound();
    /** @private */
    this.bar = new LiveTurnBar(this.marks, (bar) => transcript.showAtEnd(bar));
    /** @type {(type: string, take: (detail: any, pageMs: number) => void) => void} */
    const onMoment = (type, take) => {
      events.addEventListener(type, (event) => {
        const { detail, pageMs } = /** @type {CustomEvent & Moment} */ (event);
        take(detail, pageMs);
      });
    };
    onMoment('event', (event, pageMs) => this.onEvent(event, pageMs));
    onMoment('status', ({ state }) => {
      if (state !== 'open') this.reset();
    });
    onMoment('audio', ({ itemId, samples }) => this.sounds.arrived(itemId, samples));
    onMoment('played', ({ itemId, playedMs }, pageMs) => {
      const heardMs = this.sounds.played(itemId, playedMs, pageMs);
      if (heardMs !== null) this.onHeard(itemId, heardMs);
    });
    onMoment('turn', ({ turn }) => {
      this.marks.over(turn.turn);
      this.bar.update();
    });
  }

  /**
   * @private
   * @param {RealtimeEvent} event
   * @param {number} arrivedMs by the page's clock
   */
  onEvent(event, arrivedMs) {
    if (event.type === 'halfsec.mark') {
      this.marks.take(/** @type {any} */ (event), arrivedMs);
      // Without a loudspeaker a reply counts as heard when its text arrives.
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

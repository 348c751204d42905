/**
 * What was sent in a call, as far as it has to be sent again where a connection broke before it
 * arrived. The server counts frames; so do we.
 */

/** @typedef {{type: string, [field: string]: any}} RealtimeEvent */

/** Older ones have arrived, or are of no use any more. */
const MAX_KEPT = 64;

/** The rest is about a moment that is over; sound above all. */
const SENT_AGAIN = new Set([
  'session.update',
  'conversation.item.create',
  'conversation.item.delete',
  'conversation.item.retrieve',
  'conversation.item.truncate',
  'input_audio_buffer.commit',
  'response.create',
]);

export class ResendBuffer {
  constructor() {
    /** @private Frames sent in this call. */
    this.numSent = 0;
    /** @private @type {{number: number, event: RealtimeEvent}[]} */
    this.kept = [];
  }

  /** Another call begins. */
  forget() {
    this.numSent = 0;
    this.kept = [];
  }

  /** @param {RealtimeEvent} event that is being sent */
  add(event) {
    this.numSent += 1;
    if (!SENT_AGAIN.has(event.type)) return;
    this.kept.push({ number: this.numSent, event });
    this.kept.splice(0, this.kept.length - MAX_KEPT);
  }

  /**
   * What the server has not got. It is kept no longer: whoever sends it adds it again.
   * @param {number} received frames of this call that it has dealt with
   * @returns {RealtimeEvent[]}
   */
  takeMissing(received) {
    const missing = this.kept.filter(({ number }) => number > received);
    this.kept = [];
    this.numSent = received;
    return missing.map(({ event }) => event);
  }
}

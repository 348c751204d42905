/**
 * Resend buffer: events that are sent again when the connection broke before they arrived. Client
 * and server count frames.
 */

/** @typedef {{type: string, [field: string]: any}} RealtimeEvent */

/** Capacity; older events have arrived or are outdated. */
const MAX_KEPT = 64;

/**
 * Types of events that are sent again. The others concern a moment that is over, above all audio.
 */
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

  /** Reset for a new call. */
  forget() {
    this.numSent = 0;
    this.kept = [];
  }

  /** @param {RealtimeEvent} event that is sent now */
  add(event) {
    this.numSent += 1;
    if (!SENT_AGAIN.has(event.type)) return;
    this.kept.push({ number: this.numSent, event });
    this.kept.splice(0, this.kept.length - MAX_KEPT);
  }

  /**
   * Take the events that the server has not received. They are removed: sending adds them again.
   * @param {number} received frames of this call that the server has processed
   * @returns {RealtimeEvent[]}
   */
  takeMissing(received) {
    const missing = this.kept.filter(({ number }) => number > received);
    this.kept = [];
    this.numSent = received;
    return missing.map(({ event }) => event);
  }
}

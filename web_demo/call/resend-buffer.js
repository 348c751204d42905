/**
 * Resend buffer: events that are sent again when the connection broke before they arrived, and the
 * order in which a resumed connection begins. Client and server count frames.
 */

/** @typedef {{type: string, [field: string]: any}} RealtimeEvent */

/** Capacity; older events have arrived or are outdated. */
const MAX_KEPT = 64;

const UPDATE = 'session.update';
const TRUNCATE = 'conversation.item.truncate';

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

/**
 * Order of the first events of a resumed connection: first how much was heard of replies, because
 * the server answers the other events by what it knows then; then the events that were lost; then
 * those that are new. A lost `session.update` that is repeated before anything else depends on it
 * is left out. One that is only followed by another value is not: an update is accepted as a whole
 * or not at all, and one of `turn_detection` builds on the one before.
 * @param {readonly RealtimeEvent[]} lost
 * @param {readonly RealtimeEvent[]} added
 * @returns {RealtimeEvent[]}
 */
export function resumptionOrder(lost, added) {
  const all = [...lost, ...added];
  const others = all.filter(({ type }) => type !== TRUNCATE);
  return [
    ...all.filter(({ type }) => type === TRUNCATE),
    ...others.filter((event, index) => !isRepeated(event, others.slice(index + 1))),
  ];
}

/**
 * @param {RealtimeEvent} event
 * @param {RealtimeEvent[]} later
 */
function isRepeated(event, later) {
  if (event.type !== UPDATE) return false;
  const end = later.findIndex(({ type }) => type !== UPDATE);
  const updates = end < 0 ? later : later.slice(0, end);
  const session = JSON.stringify(event.session);
  return updates.some((update) => JSON.stringify(update.session) === session);
}

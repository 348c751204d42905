/**
 * Replies that the server plays over WebRTC, and how much of each was heard, from its events.
 *
 * The page holds no audio there: `output_audio_buffer.started`, `stopped` and `cleared` say what the
 * server sends, and `conversation.item.truncated` where it has cut the history. Between them what
 * was heard is the time since the start, for audio is sent in real time. Pure.
 */

/**
 * @typedef {object} Heard
 * @property {string} itemId
 * @property {number} playedMs
 * @property {'playing' | 'finished' | 'cut'} state
 *
 * @typedef {import('../call/realtime-client.js').RealtimeEvent} RealtimeEvent
 */

/** Responses whose items are known; events of older ones are over. */
const MAX_RESPONSES = 16;

export class RemoteReplies {
  constructor() {
    /** @private Item of each response. @type {Map<string, string>} */
    this.items = new Map();
    /** @private The reply that is played. @type {{responseId: string, itemId: string, sinceMs: number} | null} */
    this.current = null;
  }

  /** True while the server plays a reply. */
  get isPlaying() {
    return this.current !== null;
  }

  /** Forget all: the call is over. */
  reset() {
    this.items.clear();
    this.current = null;
  }

  /**
   * @param {RealtimeEvent} event
   * @param {number} nowMs
   * @returns {Heard | null} what the event says of a reply
   */
  take(event, nowMs) {
    switch (event.type) {
      case 'response.output_item.added':
        if (event.item.type === 'message') this.add(event.response_id, event.item.id);
        return null;
      case 'output_audio_buffer.started':
        this.start(event.response_id, nowMs);
        return this.progress(nowMs);
      case 'output_audio_buffer.stopped':
        return this.finish(event.response_id, 'finished', nowMs);
      case 'output_audio_buffer.cleared':
        return this.finish(event.response_id, 'cut', nowMs);
      case 'conversation.item.truncated':
        return { itemId: event.item_id, playedMs: event.audio_end_ms, state: 'cut' };
      default:
        return null;
    }
  }

  /**
   * @param {number} nowMs
   * @returns {Heard | null} null: nothing is played
   */
  progress(nowMs) {
    if (!this.current) return null;
    const { itemId, sinceMs } = this.current;
    return { itemId, playedMs: Math.max(0, nowMs - sinceMs), state: 'playing' };
  }

  /**
   * @private
   * @param {string} responseId
   * @param {string} itemId
   */
  add(responseId, itemId) {
    this.items.set(responseId, itemId);
    for (const old of [...this.items.keys()].slice(0, -MAX_RESPONSES)) this.items.delete(old);
  }

  /**
   * @private
   * @param {string} responseId
   * @param {number} nowMs
   */
  start(responseId, nowMs) {
    const itemId = this.items.get(responseId);
    if (itemId !== undefined) this.current = { responseId, itemId, sinceMs: nowMs };
  }

  /**
   * @private
   * @param {string} responseId
   * @param {'finished' | 'cut'} state
   * @param {number} nowMs
   * @returns {Heard | null}
   */
  finish(responseId, state, nowMs) {
    const heard = this.current?.responseId === responseId ? this.progress(nowMs) : null;
    if (heard) this.current = null;
    return heard && { ...heard, state };
  }
}

/**
 * Live events of the service: server-sent events, read with `fetch`, because `EventSource` cannot
 * send a key.
 *
 * A stream ends after some minutes and is requested again with the id of the last event, so that
 * nothing is missed. It counts as dead when its heartbeat stops.
 */

import { ServerError } from './api.js';

/**
 * @typedef {'live' | 'ended' | 'gone' | 'full' | 'refused' | 'locked'} StreamState
 * @typedef {{id: string, kind: string, data: string}} Message
 */

/** Timeout of the heartbeat, which the server sends every 15 s. */
const SILENT_MS = 40_000;
const AGAIN_MS = 1000;
const MAX_PAUSE_MS = 10_000;

/** Maximum size of an event; the server's have some kilobytes. */
const MAX_PENDING = 4_000_000;

export class EventStream {
  /**
   * @param {import('./api.js').Api} api
   * @param {(kind: string, data: any) => void} onEvent
   * @param {(state: StreamState, reason: string) => void} onState
   */
  constructor(api, onEvent, onState) {
    /** @private */
    this.api = api;
    /** @private */
    this.onEvent = onEvent;
    /** @private */
    this.onState = onState;
    /** @private */
    this.lastId = '';
    /** @private */
    this.running = false;
    /** @private @type {(() => void) | null} */
    this.wakeUp = null;
  }

  /** Listen until the page is closed. After `locked` and `refused` it must be started again. */
  async start() {
    if (this.running) {
      this.wakeUp?.();
      return;
    }
    this.running = true;
    for (let failures = 0; this.running; ) {
      const state = await this.listen();
      this.running = state !== 'locked' && state !== 'refused';
      failures = state === 'ended' ? 0 : failures + 1;
      if (this.running) await this.pause(Math.min(AGAIN_MS * 2 ** failures, MAX_PAUSE_MS));
    }
  }

  /**
   * Read one connection until its end.
   * @private
   * @returns {Promise<StreamState>}
   */
  async listen() {
    const hangUp = new AbortController();
    let watchdog = setTimeout(() => hangUp.abort(), SILENT_MS);
    /** @type {StreamState} */
    let state = 'ended';
    let reason = '';
    try {
      const headers = this.lastId ? { 'Last-Event-ID': this.lastId } : undefined;
      const answer = await this.api.open('v1/latency/events', { headers, signal: hangUp.signal });
      const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
      const parser = new EventParser();
      const decoder = new TextDecoder();
      this.onState('live', '');
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => hangUp.abort(), SILENT_MS);
        for (const message of parser.push(decoder.decode(value, { stream: true }))) {
          this.lastId = message.id || this.lastId;
          this.deliver(message);
        }
      }
    } catch (error) {
      state = stateAfter(error);
      reason = error instanceof ServerError ? error.message : '';
      hangUp.abort();
    }
    clearTimeout(watchdog);
    this.onState(state, reason);
    return state;
  }

  /**
   * Deliver a message. Errors of listeners must not look like errors of the connection.
   * @private
   * @param {Message} message
   */
  deliver({ kind, data }) {
    try {
      this.onEvent(kind, JSON.parse(data));
    } catch (error) {
      reportError(error);
    }
  }

  /**
   * @private
   * @param {number} ms
   * @returns {Promise<void>}
   */
  pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wakeUp = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/**
 * @param {unknown} error
 * @returns {StreamState}
 */
function stateAfter(error) {
  if (!(error instanceof ServerError)) return 'gone';
  if (error.status === 401) return 'locked';
  if (error.status === 403) return 'refused';
  return error.status === 503 ? 'full' : 'gone';
}

/** Parser of server-sent events (HTML Living Standard, section 9.2). */
export class EventParser {
  constructor() {
    /** @private */
    this.pending = '';
    /** @private @type {Message} */
    this.message = { id: '', kind: '', data: '' };
  }

  /**
   * @param {string} text
   * @returns {Message[]} complete events. Raises Error for an event that is too large.
   */
  push(text) {
    const lines = (this.pending + text).split('\n');
    this.pending = /** @type {string} */ (lines.pop());
    if (this.pending.length + this.message.data.length > MAX_PENDING) {
      throw new Error('an event without an end');
    }
    /** @type {Message[]} */
    const complete = [];
    for (const line of lines) {
      if (line === '' || line === '\r') {
        if (this.message.data) complete.push(this.message);
        this.message = { id: '', kind: '', data: '' };
      } else {
        this.read(line.endsWith('\r') ? line.slice(0, -1) : line);
      }
    }
    return complete;
  }

  /**
   * @private
   * @param {string} line
   */
  read(line) {
    const [, field, value] = /** @type {RegExpMatchArray} */ (line.match(/^([^:]*):? ?(.*)$/s));
    if (field === 'id') this.message.id = value;
    else if (field === 'event') this.message.kind = value;
    else if (field === 'data') {
      this.message.data += this.message.data ? `\n${value}` : value;
    }
  }
}

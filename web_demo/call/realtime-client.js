/**
 * Client of the OpenAI Realtime protocol (GA dialect) over a WebSocket, for browsers.
 *
 * Independent of audio devices and of this page, so that other pages can use it. It offers the
 * subprotocol `halfsec.v1` beside the standard one; a server that selects it also sends `halfsec.*`
 * events (live partial transcripts, latency of each turn) and reads playback reports. With any
 * other server it is a plain client.
 *
 * Events: `status` (detail: Status) on every change, `event` (detail: the server's event) for each
 * frame, `fallback` (detail: {reason}) when a call could not be connected by the alternative to a
 * WebSocket, and is connected by that.
 *
 * A lost connection is tried again with growing pauses until `close`. With a server that speaks
 * `halfsec.v1` the call waits for that, a minute as a rule: the next `open` is then `resumed`, the
 * agent remembers, and the event `halfsec.resumed` has the items of the conversation. Events that
 * did not reach the server are sent again, except audio, which is dropped: speech during the gap is
 * no answer to anything later. They come before what listeners of that `open` and of
 * `halfsec.resumed` send, except `truncate`, which comes first. No reply is in progress then; stop
 * what you are playing when the connection goes, and `truncate` it to what was heard when it is
 * back. Otherwise, and with other servers, the next `open` is a new call, and what you had set has
 * to be set again.
 *
 * To use it in a page of your own, copy this file, `base64.js` and `resend-buffer.js`, or import
 * them from the server (whose setting `agent.allowed_origins` has to name your page's origin):
 *
 *     import { RealtimeClient } from './realtime-client.js';
 *     const client = new RealtimeClient('wss://voice.example/v1/realtime');
 *     client.addEventListener('status', ({ detail }) => {
 *       if (detail.state === 'open' && !detail.resumed) client.sendText('Hello!');
 *     });
 *     client.addEventListener('event', ({ detail: event }) => {
 *       if (event.type === 'response.output_audio_transcript.delta') console.log(event.delta);
 *     });
 *     client.connect();
 *
 * `call.js` shows how sound is coupled to it.
 */

import { toBase64 } from './base64.js';
import { ResendBuffer, resumptionOrder } from './resend-buffer.js';

/**
 * @typedef {import('./resend-buffer.js').RealtimeEvent} RealtimeEvent
 *
 * @typedef {object} Status
 * @property {'closed' | 'connecting' | 'open' | 'waiting'} state
 * @property {number} [code] close code of the connection that ended
 * @property {string} [reason] the server's reason
 * @property {number} [retryInMs] in state `waiting`
 * @property {boolean} [wasOpen] in state `waiting`: there was a session, now lost
 * @property {boolean} [resumable] in state `waiting`: the server may have kept the call
 * @property {boolean} [resumed] in state `open`: the previous call continues
 *
 * @typedef {object} Socket the part of a WebSocket that is used here
 * @property {number} readyState
 * @property {string} protocol
 * @property {number} bufferedAmount
 * @property {((message: any) => void) | null} onmessage
 * @property {((end: any) => void) | null} onclose
 * @property {(text: string) => void} send
 * @property {(code?: number) => void} close
 *
 * @typedef {object} Alternative a connection whose audio goes by tracks beside the events: WebRTC.
 *   One that is not open after `TRACKS_TIMEOUT_MS`, or is refused, is followed by a WebSocket
 * @property {() => boolean} isWanted asked before each connection that resumes no call
 * @property {(url: string, secret: string | null) => Socket} open
 */

export const SUBPROTOCOLS = ['realtime', 'halfsec.v1'];

/** Prefix of the subprotocol that carries the key. Servers do not echo it. */
const KEY_PROTOCOL = 'openai-insecure-api-key.';

/**
 * Audio waiting in the socket beyond this is dropped rather than delayed: 1.5 s, at which point the
 * conversation has broken down anyway. (64 kB is one second in base64.)
 */
const MAX_BUFFERED_BYTES = 96_000;

/** `WebSocket.OPEN`. */
const OPEN = 1;

const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 10_000;

/**
 * Timeout for the first event: a server that accepts the socket but sends nothing counts as gone.
 */
const HANDSHAKE_TIMEOUT_MS = 10_000;

/**
 * The same for an alternative to a WebSocket: where UDP is closed nothing comes at all. Checks of
 * addresses take a fraction of a second, a relay or a lost handshake one or two, both more on a line
 * that loses packets.
 */
const TRACKS_TIMEOUT_MS = 8_000;

/**
 * Delay of a commit where audio goes by tracks: what is on its way beside the events comes before,
 * a frame of 20 ms and the packets of 60 ms that reorder.
 */
const TAIL_MS = 120;

/**
 * Close codes after which the client does not reconnect: normal closure, policy violation, and a
 * call that continues on another connection.
 */
const FINAL_CODES = new Set([1000, 1008, 4409]);

/** Close code: the server has no call to resume. */
const NOTHING_TO_RESUME = 4404;

/** Close code sent to the server: the connection is given up, the call is not. */
const COMES_BACK = 4408;

/** Delay of the first attempt to resume: a Wi-Fi that changes cells is back at once. */
const FIRST_RESUME_MS = 100;

/** Keepalive timeout: the connection is dead without a close. */
const STUCK_MS = 4_000;

/**
 * Timeout of `check`: an answer takes a few milliseconds, up to a second when the network has just
 * woken up.
 */
const PROBE_MS = 2_000;

/** @returns {string} the voice socket of the server this page came from */
export function defaultUrl() {
  const url = new URL('/v1/realtime', globalThis.location.href);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  const model = new URLSearchParams(globalThis.location.search).get('model');
  url.searchParams.set('model', model ?? 'default');
  return url.href;
}

export class RealtimeClient extends EventTarget {
  /**
   * @param {string} url
   * @param {object} [options]
   * @param {string[]} [options.protocols]
   * @param {typeof WebSocket} [options.WebSocket] another implementation (Node, tests)
   * @param {() => Promise<string | null>} [options.getSecret] called before each connection for the
   *   key or client secret; null for none. A rejection counts as a failed attempt
   * @param {Alternative} [options.alternative]
   */
  constructor(url, options = {}) {
    super();
    /** URL of the next connection. Close the call before switching to another agent. */
    this.url = url;
    /** @private */
    this.protocols = options.protocols ?? SUBPROTOCOLS;
    /** @private */
    this.WebSocket = options.WebSocket ?? globalThis.WebSocket;
    /** @private */
    this.getSecret = options.getSecret;
    /** @private */
    this.alternative = options.alternative;
    /** Audio goes by tracks beside the events, and not in them: the server plays and truncates. */
    this.usesTracks = false;
    /** @private Counts connections that were begun or ended. */
    this.attempt = 0;
    /** @private @type {Socket | null} */
    this.socket = null;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @private */
    this.numFailures = 0;
    /** @type {Status} */
    this.status = { state: 'closed' };
    /** Milliseconds of audio dropped because of a slow connection. */
    this.droppedMs = 0;
    /** Id of the newest session. */
    this.sessionId = '';
    /** @private By which the call can be resumed. @type {string | null} */
    this.token = null;
    /** @private */
    this.kept = new ResendBuffer();
    /** @private Events that follow older ones, still to be sent again. @type {RealtimeEvent[] | null} */
    this.held = null;
    /** @private Since when the socket takes no audio. */
    this.stuckSinceMs = 0;
    /** Session as last sent by the server. @type {{[field: string]: any} | null} */
    this.session = null;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.probe = undefined;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.tail = undefined;
  }

  /** True when the server selected `halfsec.v1`. */
  get extended() {
    return this.socket?.protocol === 'halfsec.v1';
  }

  /** True when audio goes by tracks in the connection that is open or next. */
  get willUseTracks() {
    const { state } = this.status;
    if (state === 'open' || state === 'connecting') return this.usesTracks;
    return !this.token && (this.alternative?.isWanted() ?? false);
  }

  /** Open the session; skips the pause when a reconnection is pending. */
  connect() {
    if (this.status.state === 'open' || this.status.state === 'connecting') return;
    this.usesTracks = this.willUseTracks;
    this.begin();
  }

  /** @private */
  begin() {
    clearTimeout(this.timer);
    this.attempt += 1;
    this.setStatus({ state: 'connecting' });
    if (this.getSecret) void this.openWithSecret(this.getSecret, this.attempt);
    else this.open(null);
  }

  /**
   * @private
   * @param {() => Promise<string | null>} getSecret
   * @param {number} attempt
   */
  async openWithSecret(getSecret, attempt) {
    try {
      const secret = await getSecret();
      if (this.attempt !== attempt) return;
      this.open(secret);
    } catch (error) {
      if (this.attempt === attempt) this.ended(1006, String(error), false);
    }
  }

  /**
   * @private
   * @param {string | null} secret
   */
  open(secret) {
    const socket = this.usesTracks ? this.openTracks(secret) : this.openWebSocket(secret);
    this.socket = socket;
    const limitMs = this.usesTracks ? TRACKS_TIMEOUT_MS : HANDSHAKE_TIMEOUT_MS;
    this.timer = setTimeout(() => this.lost(socket, 1006, 'no answer'), limitMs);
    socket.onmessage = ({ data }) => {
      if (this.socket === socket) this.receive(data);
    };
    socket.onclose = ({ code, reason }) => this.lost(socket, code, reason);
  }

  /**
   * @private
   * @param {string | null} secret
   * @returns {Socket}
   */
  openTracks(secret) {
    return /** @type {Alternative} */ (this.alternative).open(this.url, secret);
  }

  /**
   * @private
   * @param {string | null} secret
   * @returns {Socket}
   */
  openWebSocket(secret) {
    const url = new URL(this.url);
    if (this.token) url.searchParams.set('resume', this.token);
    const keys = secret === null ? [] : [KEY_PROTOCOL + secret];
    return new this.WebSocket(url.href, [...this.protocols, ...keys]);
  }

  /** End the session without reconnecting. */
  close() {
    clearTimeout(this.timer);
    this.withdrawCommit();
    this.attempt += 1;
    const socket = this.socket;
    this.socket = null;
    this.numFailures = 0;
    this.forgetCall();
    socket?.close(1000);
    this.setStatus({ state: 'closed' });
  }

  /**
   * @param {RealtimeEvent} event
   * @returns {boolean} true when it was passed to the socket, or follows older events that are
   *   sent again first
   */
  send(event) {
    // Browsers log an error for each frame that is sent on a closing socket.
    if (this.status.state !== 'open' || this.socket?.readyState !== OPEN) return false;
    if (this.held) {
      this.held.push(event);
      return true;
    }
    this.kept.add(event);
    this.socket.send(JSON.stringify(event));
    return true;
  }

  /**
   * @param {Int16Array} pcm at 24 kHz
   * @returns {boolean} false when it was dropped
   */
  appendAudio(pcm) {
    if (this.usesTracks) return this.status.state === 'open'; // it is sent beside the events
    if (this.socket && this.socket.bufferedAmount > MAX_BUFFERED_BYTES) {
      this.droppedMs += pcm.length / 24;
      const now = performance.now();
      this.stuckSinceMs ||= now;
      if (this.token && now - this.stuckSinceMs > STUCK_MS) this.lost(this.socket, 1006, 'stuck');
      return false;
    }
    this.stuckSinceMs = 0;
    const bytes = new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
    return this.send({ type: 'input_audio_buffer.append', audio: toBase64(bytes) });
  }

  /**
   * Send a text message and request a reply.
   * @param {string} text
   */
  sendText(text) {
    const content = [{ type: 'input_text', text }];
    this.send({
      type: 'conversation.item.create',
      item: { type: 'message', role: 'user', content },
    });
    this.send({ type: 'response.create' });
  }

  /**
   * Commit the appended audio as an utterance and request a reply. For sessions without turn
   * detection.
   */
  commitAudio() {
    const commit = () => {
      this.send({ type: 'input_audio_buffer.commit' });
      this.send({ type: 'response.create' });
    };
    this.withdrawCommit();
    if (!this.usesTracks) return commit();
    this.tail = setTimeout(() => {
      this.tail = undefined;
      commit();
    }, TAIL_MS);
  }

  /**
   * Withdraw a commit that waits for audio on its way beside the events: more is to come.
   * @returns {boolean} true when there was one; its audio belongs to the next commit
   */
  withdrawCommit() {
    const isWaiting = this.tail !== undefined;
    clearTimeout(this.tail);
    this.tail = undefined;
    return isWaiting;
  }

  /** Discard the audio appended since the last utterance. */
  clearAudio() {
    this.withdrawCommit();
    this.send({ type: 'input_audio_buffer.clear' });
  }

  /**
   * Check that the connection is alive, for example after sleep: the socket may be open on this
   * side only. A server that does not answer counts as gone, and the call is resumed at once.
   */
  check() {
    const socket = this.socket;
    const session = { type: this.session?.type ?? 'realtime' }; // an update without changes
    if (!socket || !this.send({ type: 'session.update', session })) return;
    clearTimeout(this.probe);
    this.probe = setTimeout(() => this.lost(socket, 1006, 'no answer after a pause'), PROBE_MS);
  }

  /**
   * Set the pause that the server asked for.
   * @param {number} ms
   */
  retryIn(ms) {
    if (this.status.state !== 'waiting') return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), ms * (1 + Math.random() / 4));
  }

  /** Cancel the reply in progress. */
  cancelResponse() {
    this.send({ type: 'response.cancel' });
  }

  /** Stop the reply that the server plays, where audio goes by tracks; its history is cut there. */
  clearOutput() {
    if (this.usesTracks) this.send({ type: 'output_audio_buffer.clear' });
  }

  /**
   * Truncate a reply in the server's history to the part that was heard. Where audio goes by tracks
   * the server does that.
   * @param {string} itemId
   * @param {number} heardMs
   */
  truncate(itemId, heardMs) {
    if (this.usesTracks) return;
    this.send({
      type: 'conversation.item.truncate',
      item_id: itemId,
      content_index: 0,
      audio_end_ms: Math.floor(heardMs),
    });
  }

  /**
   * @param {string} itemId
   * @param {number} playedMs
   */
  reportPlayback(itemId, playedMs) {
    if (!this.extended) return;
    this.send({ type: 'halfsec.playback', item_id: itemId, played_ms: Math.floor(playedMs) });
  }

  /**
   * @private
   * @param {string} data
   */
  receive(data) {
    /** @type {RealtimeEvent} */
    const event = JSON.parse(data);
    if (event.session?.type) this.session = event.session;
    // Other frames may have been queued in the browser since before the pause.
    if (event.type === 'session.updated' || event.type === 'error') clearTimeout(this.probe);
    if (event.type === 'session.created') {
      this.forgetCall();
      this.sessionId = event.session?.id ?? '';
      this.opened(false);
    }
    if (event.type === 'halfsec.session') this.token = event.resume_token;
    if (event.type === 'halfsec.resumed') this.goOn(event);
    else this.dispatchEvent(new CustomEvent('event', { detail: event }));
  }

  /**
   * Go on with the same call. Its settings end as the user left them: what listeners send now is
   * newer than what was lost, and waits for it.
   * @private
   * @param {RealtimeEvent} event `halfsec.resumed`
   */
  goOn(event) {
    const { attempt } = this;
    const lost = this.kept.takeMissing(event.received);
    /** @type {RealtimeEvent[]} */
    const added = [];
    this.held = added;
    this.opened(true);
    this.dispatchEvent(new CustomEvent('event', { detail: event }));
    this.held = null;
    if (this.attempt !== attempt) return; // a listener has ended the call
    for (const each of resumptionOrder(lost, added)) {
      this.kept.add(each); // also where the socket is closing: then the next one gets it
      if (this.socket?.readyState === OPEN) this.socket.send(JSON.stringify(each));
    }
  }

  /**
   * @private
   * @param {boolean} resumed
   */
  opened(resumed) {
    clearTimeout(this.timer);
    this.numFailures = 0;
    this.stuckSinceMs = 0;
    this.setStatus({ state: 'open', resumed });
  }

  /** @private The next connection is another call. */
  forgetCall() {
    this.token = null;
    this.kept.forget();
  }

  /**
   * @private
   * @param {Socket} socket
   * @param {number} code
   * @param {string} reason
   */
  lost(socket, code, reason) {
    if (this.socket !== socket) return;
    clearTimeout(this.timer);
    clearTimeout(this.probe);
    this.withdrawCommit();
    const wasOpen = this.status.state === 'open';
    this.socket = null;
    socket.close(COMES_BACK);
    if (this.usesTracks && !wasOpen) this.fallBack(reason);
    else this.ended(code, reason, wasOpen);
  }

  /**
   * @private
   * @param {string} reason
   */
  fallBack(reason) {
    const { attempt } = this;
    this.usesTracks = false;
    this.dispatchEvent(new CustomEvent('fallback', { detail: { reason } }));
    if (this.attempt === attempt) this.begin(); // unless a listener has ended the call
  }

  /**
   * @private
   * @param {number} code
   * @param {string} reason
   * @param {boolean} wasOpen
   */
  ended(code, reason, wasOpen) {
    if (FINAL_CODES.has(code)) {
      this.forgetCall();
      this.setStatus({ state: 'closed', code, reason });
      return;
    }
    if (code === NOTHING_TO_RESUME) this.forgetCall();
    const resumable = this.token !== null;
    const first = resumable ? FIRST_RESUME_MS : FIRST_RETRY_MS;
    const pause = Math.min(MAX_RETRY_MS, first * 2 ** this.numFailures);
    // Up to a quarter more, so that many pages do not reconnect at the same instant.
    const retryInMs = Math.round(pause * (1 + Math.random() / 4));
    this.numFailures += 1;
    this.timer = setTimeout(() => this.connect(), retryInMs);
    this.setStatus({ state: 'waiting', code, reason, retryInMs, wasOpen, resumable });
  }

  /**
   * @private
   * @param {Status} status
   */
  setStatus(status) {
    this.status = status;
    this.dispatchEvent(new CustomEvent('status', { detail: status }));
  }
}

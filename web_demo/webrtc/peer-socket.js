/**
 * A call by WebRTC in the form of a WebSocket, so that `RealtimeClient` uses either.
 *
 * Events are messages of the data channel `oai-events`; the microphone's track goes out beside
 * them, and the agent's comes in. The offer is posted to `/v1/realtime/calls`, as OpenAI's API has
 * it. Its candidates are not waited for: the server is found by its own, and finds this page by the
 * checks that it sends.
 *
 * `onclose` comes once, unless `close` was called: with the reason of the server's refusal, of the
 * error event with which it ended the call, or 1006.
 *
 * A line that is dead says no goodbye. The browser notices after some seconds without an answer to
 * its connectivity checks (`disconnected`), and takes 15 to 30 s until it gives up (`failed`), while
 * the caller hears nothing. So the line is given up where nothing at all has come for `DEAD_MS` of
 * that state; a line that only loses packets leaves it, or still lets some through.
 */

/** Label of the data channel. */
const CHANNEL = 'oai-events';

/** States of a WebSocket. */
const CONNECTING = 0;
const OPEN = 1;
const CLOSED = 3;

const ABNORMAL = 1006;

/**
 * Time in state `disconnected` without a byte from the server. A stall of 2 s must pass, and the
 * browser is in that state before it has sent two more checks; longer is silence for the caller.
 */
const DEAD_MS = 3_000;

/** Statistics that count what was received, by their `bytesReceived`; checks do not count. */
const RECEIVING = new Set(['candidate-pair', 'inbound-rtp', 'data-channel']);

/** Close codes of the errors with which a server ends a call: a data channel has none of its own. */
const END_CODES = new Map([
  ['session_ended', 1000],
  ['policy_violation', 1008],
  ['internal_error', 1011],
  ['draining', 1012],
  ['overloaded', 1013],
]);

/**
 * @typedef {object} Call
 * @property {string} url of the voice socket (`ws:` or `wss:`)
 * @property {string | null} secret key or client secret; null for none
 * @property {MediaStreamTrack | null} track that is sent at first
 * @property {(stream: MediaStream) => void} onStream called with the agent's audio
 * @property {(path: string) => void} hangUp ends the call at this path: the server holds its line
 *   for a client that has given up
 * @property {typeof RTCPeerConnection} [RTCPeerConnection] another implementation (tests)
 * @property {typeof fetch} [fetch]
 */

export class PeerSocket {
  /** @param {Call} call */
  constructor(call) {
    /** @private */
    this.call = call;
    this.readyState = CONNECTING;
    /** Extension events are not offered over WebRTC. */
    this.protocol = '';
    /** @type {((message: {data: string}) => void) | null} */
    this.onmessage = null;
    /** @type {((end: {code: number, reason: string}) => void) | null} */
    this.onclose = null;
    /** @private @type {RTCPeerConnection | null} */
    this.connection = null;
    /** @private @type {RTCDataChannel | null} */
    this.channel = null;
    /** @private @type {RTCRtpSender | null} */
    this.sender = null;
    /** @private The call's path at the server. */
    this.path = '';
    /** @private The server may not notice that the connection is closed. */
    this.isDead = false;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @private */
    this.end = { code: ABNORMAL, reason: 'the connection broke' };
    void this.connect();
  }

  /** Bytes of events that wait to be sent. */
  get bufferedAmount() {
    return this.channel?.bufferedAmount ?? 0;
  }

  /** @param {string} text */
  send(text) {
    this.channel?.send(text);
  }

  /**
   * Send this track from now on.
   * @param {MediaStreamTrack | null} track null: none
   */
  replaceTrack(track) {
    this.call.track = track;
    // Refused where the connection has just been closed.
    void this.sender?.replaceTrack(track).catch(() => {});
  }

  /** Hang up. */
  close() {
    if (this.readyState === CLOSED) return;
    const isUnseen = this.readyState === CONNECTING || this.isDead;
    this.readyState = CLOSED;
    clearTimeout(this.timer);
    if (this.path && isUnseen) this.call.hangUp(this.path);
    this.connection?.close();
  }

  /** @private */
  async connect() {
    try {
      const offer = await this.offer();
      const answer = await this.ask(offer);
      await this.connection?.setRemoteDescription({ type: 'answer', sdp: answer });
    } catch (error) {
      this.fail(ABNORMAL, error instanceof Error ? error.message : String(error));
    }
  }

  /**
   * @private
   * @returns {Promise<string>}
   */
  async offer() {
    const Connection = this.call.RTCPeerConnection ?? globalThis.RTCPeerConnection;
    if (!Connection) throw new Error('This browser has no WebRTC.');
    const connection = new Connection();
    this.connection = connection;
    connection.ontrack = ({ track }) => this.call.onStream(new MediaStream([track]));
    connection.onconnectionstatechange = () => this.onState(connection);
    // The track comes before the channel: the server wants the audio first in the offer.
    const { track } = this.call;
    this.sender = connection.addTransceiver(track ?? 'audio', { direction: 'sendrecv' }).sender;
    this.listen(connection.createDataChannel(CHANNEL));
    await connection.setLocalDescription();
    return connection.localDescription?.sdp ?? '';
  }

  /**
   * @private
   * @param {RTCPeerConnection} connection
   */
  onState(connection) {
    clearTimeout(this.timer);
    const { connectionState } = connection;
    const isOpen = this.readyState === OPEN;
    if (connectionState === 'failed') this.failDead(isOpen ? this.end.reason : NO_WAY);
    else if (connectionState === 'disconnected' && isOpen) void this.watchLine(connection);
  }

  /**
   * Give the line up unless something comes within `DEAD_MS`, again and again until the browser has
   * it connected.
   * @private
   * @param {RTCPeerConnection} connection that is disconnected
   * @param {number} [numBefore] bytes received so far
   */
  async watchLine(connection, numBefore) {
    const numBytes = await numReceived(connection);
    const isOver = connection.connectionState !== 'disconnected' || this.readyState !== OPEN;
    if (isOver || numBytes === null) return;
    if (numBytes === numBefore) return this.failDead(this.end.reason);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.watchLine(connection, numBytes), DEAD_MS);
  }

  /**
   * @private
   * @param {string} reason
   */
  failDead(reason) {
    this.isDead = true;
    this.fail(ABNORMAL, reason);
  }

  /**
   * @private
   * @param {RTCDataChannel} channel
   */
  listen(channel) {
    this.channel = channel;
    channel.onopen = () => {
      if (this.readyState === CONNECTING) this.readyState = OPEN;
    };
    channel.onmessage = ({ data }) => {
      this.noteEnd(JSON.parse(data));
      this.onmessage?.({ data });
    };
    channel.onclose = () => this.fail(this.end.code, this.end.reason);
  }

  /**
   * @private
   * @param {{type: string, error?: {code?: string, message?: string}}} event
   */
  noteEnd({ type, error }) {
    const code = type === 'error' ? END_CODES.get(error?.code ?? '') : undefined;
    if (code !== undefined) this.end = { code, reason: error?.message ?? '' };
  }

  /**
   * @private
   * @param {string} offer
   * @returns {Promise<string>} SDP answer
   */
  async ask(offer) {
    const { secret, fetch = globalThis.fetch.bind(globalThis) } = this.call;
    const headers = new Headers({ 'Content-Type': 'application/sdp' });
    if (secret !== null) headers.set('Authorization', `Bearer ${secret}`);
    const answer = await fetch(callsUrl(this.call.url), { method: 'POST', headers, body: offer });
    if (!answer.ok) throw new Error(await reasonOf(answer));
    const path = answer.headers.get('Location') ?? '';
    if (this.readyState === CONNECTING) this.path = path;
    else if (this.readyState === CLOSED && path) this.call.hangUp(path); // given up meanwhile
    return answer.text();
  }

  /**
   * @private
   * @param {number} code
   * @param {string} reason
   */
  fail(code, reason) {
    if (this.readyState === CLOSED) return;
    this.close();
    this.onclose?.({ code, reason });
  }
}

/**
 * @param {RTCPeerConnection} connection
 * @returns {Promise<number | null>} bytes received so far; null where the browser does not say
 */
async function numReceived(connection) {
  let sum = 0;
  try {
    for (const each of (await connection.getStats()).values()) {
      if (RECEIVING.has(each.type)) sum += each.bytesReceived ?? 0;
    }
  } catch {
    return null; // it has just been closed
  }
  return sum;
}

/** The usual reason: a firewall. */
const NO_WAY = 'No way for the audio was found: UDP may be closed between here and the server.';

/**
 * @param {string} socketUrl of the voice socket
 * @returns {string} where calls by WebRTC are opened, for the same agent
 */
export function callsUrl(socketUrl) {
  const url = new URL(socketUrl);
  url.protocol = url.protocol === 'wss:' ? 'https:' : 'http:';
  url.pathname += '/calls';
  return url.href;
}

/**
 * @param {Response} answer that refuses the call
 * @returns {Promise<string>}
 */
async function reasonOf(answer) {
  try {
    const { error } = await answer.json();
    if (typeof error.message === 'string') return error.message;
  } catch {
    // A proxy has answered.
  }
  return `The server answered with status ${answer.status}.`;
}

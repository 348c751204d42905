/**
 * Choice between WebSocket and WebRTC for the next call, by the preference and by the line.
 *
 * A WebSocket runs over TCP: a lost packet holds up all that follow it, so a lossy line is heard as
 * gaps. WebRTC sends audio as datagrams and conceals those that are lost; but it needs open UDP and
 * the server's extra `webrtc`, has no resumption and no latency figures. So `auto` begins with the
 * WebSocket and leaves it only for a line that has proved lossy.
 *
 * The rule: troubles of WebSocket calls that add up to `LOSSY` within `WITHIN_MS` make the line
 * lossy until the page is reloaded. A slow server causes gaps too; from here both look alike.
 *
 * What the server can do is known from its answer: a call by WebRTC that could not be connected
 * rules WebRTC out, for the rest of that call where it was asked for, and for `auto` until the page
 * is reloaded. Pure.
 */

/**
 * @typedef {'gap' | 'dropped' | 'broken'} Trouble of a WebSocket: playback ran dry within a reply;
 *   audio of the microphone was dropped because the socket's buffer was full, which counts once a
 *   second; the connection broke
 *
 * @typedef {import('../call/preferences.js').Connection} Connection
 */

/** Weight of each trouble: a broken connection is heard as a second of silence or more. */
export const WEIGHTS = Object.freeze({ gap: 1, dropped: 1, broken: 2 });

/** Less: one Wi-Fi that changes cells moves the call to WebRTC. More: a call is lost before. */
export const LOSSY = 3;

export const WITHIN_MS = 60_000;

/** Audio dropped within this time is one trouble: a single stall drops many batches of 20 ms. */
export const ONE_STALL_MS = 1000;

export class ConnectionChoice {
  constructor() {
    /** @private @type {{atMs: number, weight: number}[]} */
    this.troubles = [];
    /** The line has proved lossy. */
    this.isLossy = false;
    /** @private */
    this.droppedAtMs = -Infinity;
    /** @private WebRTC could not be connected in this call. */
    this.hasFailed = false;
    /** @private WebRTC could not be connected since the page was loaded. */
    this.isRuledOut = false;
  }

  /**
   * Note troubles of a WebSocket call.
   * @param {Trouble} trouble
   * @param {number} nowMs
   * @param {number} [count]
   */
  note(trouble, nowMs, count = 1) {
    if (count <= 0 || this.isLossy) return;
    if (trouble === 'dropped') {
      const isSameStall = nowMs - this.droppedAtMs < ONE_STALL_MS;
      this.droppedAtMs = nowMs;
      if (isSameStall) return;
    }
    this.troubles.push({ atMs: nowMs, weight: WEIGHTS[trouble] * count });
    this.troubles = this.troubles.filter(({ atMs }) => nowMs - atMs < WITHIN_MS);
    this.isLossy = this.troubles.reduce((sum, { weight }) => sum + weight, 0) >= LOSSY;
  }

  /** A call could not be connected by WebRTC. */
  failed() {
    this.hasFailed = true;
    this.isRuledOut = true;
  }

  /** The call is over: the next one may try again where WebRTC is asked for. */
  ended() {
    this.hasFailed = false;
  }

  /**
   * @param {Connection} preference
   * @returns {boolean} true: the next call goes by WebRTC
   */
  usesWebRtc(preference) {
    if (preference === 'webrtc') return !this.hasFailed;
    return preference === 'auto' && this.isLossy && !this.isRuledOut;
  }
}

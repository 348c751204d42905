/**
 * Time at which a reply's first audible sample was played. Not its first sample: voices begin with
 * a little silence. The server's latency accounts use the same definition. Pure.
 */

import { WIRE_RATE_HZ } from './pcm.js';

/** Threshold of audibility, relative to full scale. */
const AUDIBLE = 0.01;

/** Maximum number of replies that are tracked at once. */
const MAX_REPLIES = 8;

export class FirstSound {
  constructor() {
    /** @private @type {Map<string, {receivedMs: number, silentMs: number | null, isHeard: boolean}>} */
    this.replies = new Map();
  }

  /**
   * Audio of a reply has arrived.
   * @param {string} itemId
   * @param {Float32Array} samples at the wire's rate
   */
  arrived(itemId, samples) {
    const reply = this.replies.get(itemId) ?? { receivedMs: 0, silentMs: null, isHeard: false };
    this.replies.set(itemId, reply);
    if (reply.silentMs !== null) return;
    const index = samples.findIndex((sample) => Math.abs(sample) > AUDIBLE);
    if (index >= 0) reply.silentMs = reply.receivedMs + (1000 * index) / WIRE_RATE_HZ;
    reply.receivedMs += (1000 * samples.length) / WIRE_RATE_HZ;
    for (const old of [...this.replies.keys()].slice(0, -MAX_REPLIES)) this.replies.delete(old);
  }

  /**
   * @param {string} itemId
   * @param {number} playedMs played so far
   * @param {number} nowMs
   * @returns {number | null} time of the first audible sample, reported once
   */
  played(itemId, playedMs, nowMs) {
    const reply = this.replies.get(itemId);
    if (!reply || reply.isHeard || reply.silentMs === null || playedMs <= reply.silentMs) return null;
    reply.isHeard = true;
    return nowMs - (playedMs - reply.silentMs);
  }
}

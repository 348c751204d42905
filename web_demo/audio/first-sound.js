/**
 * When the first sound of a reply was heard: its first sample that is audible, not its first one,
 * because voices begin with a little silence. The server's accounts take it the same way. Pure.
 */

import { WIRE_RATE_HZ } from './pcm.js';

/** Of full scale. */
const AUDIBLE = 0.01;

/** Replies in the air at once. */
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
   * @param {number} playedMs of it by now
   * @param {number} nowMs
   * @returns {number | null} when its first sound was heard, once
   */
  played(itemId, playedMs, nowMs) {
    const reply = this.replies.get(itemId);
    if (!reply || reply.isHeard || reply.silentMs === null || playedMs <= reply.silentMs) return null;
    reply.isHeard = true;
    return nowMs - (playedMs - reply.silentMs);
  }
}

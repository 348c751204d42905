/**
 * Tells the server what the loudspeaker has really played: `halfsec.playback`, every 200 ms of
 * speech and once more at a reply's end or cut. From these reports come the latency at the ear and
 * the words that history keeps after an interruption.
 */

const REPORT_EVERY_MS = 200;

export class PlaybackReports {
  /** @param {import('./realtime-client.js').RealtimeClient} client */
  constructor(client) {
    /** @private */
    this.client = client;
    /** @private Played and reported milliseconds of each reply in the air. @type {Map<string, {played: number, reported: number}>} */
    this.items = new Map();
    /** Milliseconds of all replies played so far. */
    this.totalMs = 0;
  }

  /**
   * @param {string} itemId
   * @param {number} playedMs
   * @param {boolean} last
   */
  played(itemId, playedMs, last) {
    const item = this.items.get(itemId) ?? { played: 0, reported: -REPORT_EVERY_MS };
    this.totalMs += Math.max(0, playedMs - item.played);
    item.played = Math.max(playedMs, item.played);
    this.items.set(itemId, item);
    if (playedMs > 0 && (last || playedMs - item.reported >= REPORT_EVERY_MS)) {
      item.reported = playedMs;
      this.client.reportPlayback(itemId, playedMs);
    }
    if (last) this.items.delete(itemId);
  }
}

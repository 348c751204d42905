/**
 * Playback reports to the server: `halfsec.playback`, every 200 ms of played speech and at the end
 * or cut of a reply. The server derives from them the latency at the ear and the words that stay in
 * the history after an interruption.
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

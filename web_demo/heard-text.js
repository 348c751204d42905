/**
 * Which words of a reply have been heard.
 *
 * The server sends each piece of text just before the audio that speaks it, so the order of the two
 * is the alignment: a piece begins where the audio received so far ends. Inside a piece, letters are
 * taken to last equally long, and the result is moved to the end of the word it falls in. Pure.
 */

export class HeardText {
  constructor() {
    this.text = '';
    /** Milliseconds of audio received. */
    this.audioMs = 0;
    /** @private Where each piece begins. @type {{chars: number, atMs: number}[]} */
    this.pieces = [];
  }

  /** @param {string} delta */
  addText(delta) {
    const last = this.pieces.at(-1);
    if (last?.atMs !== this.audioMs)
      this.pieces.push({ chars: this.text.length, atMs: this.audioMs });
    this.text += delta;
  }

  /** @param {number} ms */
  addAudio(ms) {
    this.audioMs += ms;
  }

  /**
   * @param {number} playedMs of this reply's audio
   * @returns {number} characters of `text` heard by then
   */
  charsAt(playedMs) {
    const index = this.pieces.findLastIndex(({ atMs }) => atMs < playedMs);
    if (index < 0) return 0;
    const { chars, atMs } = this.pieces[index];
    const next = this.pieces[index + 1] ?? { chars: this.text.length, atMs: this.audioMs };
    const share = Math.min(1, (playedMs - atMs) / Math.max(1, next.atMs - atMs));
    const reached = chars + Math.round(share * (next.chars - chars));
    const rest = this.text.slice(reached).search(/\s|$/);
    return reached === chars ? chars : Math.min(next.chars, reached + rest);
  }
}

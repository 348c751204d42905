/**
 * Alignment of a reply's text with its audio: which words have been played.
 *
 * The server sends each piece of text just before the audio that speaks it, so the order of the two
 * is the alignment: a piece begins where the audio received so far ends. Inside a piece, letters
 * are assumed to last equally long, and the result is moved to the end of its word.
 *
 * The audio of the newest piece is still on its way, for it is sent little ahead of being heard.
 * Until it has arrived its length is estimated from its number of letters, with the duration of a
 * letter measured on earlier pieces. Pure.
 */

/** Initial duration of a letter: 14 letters a second, spaces included. */
const LETTER_MS = 70;

export class HeardText {
  constructor() {
    this.text = '';
    /** Milliseconds of audio received. */
    this.audioMs = 0;
    /** @private All audio has been received. */
    this.isComplete = false;
    /** @private Where each piece begins. @type {{chars: number, atMs: number}[]} */
    this.pieces = [];
  }

  /** @param {string} delta */
  addText(delta) {
    if (!delta) return;
    const last = this.pieces.at(-1);
    if (last?.atMs !== this.audioMs)
      this.pieces.push({ chars: this.text.length, atMs: this.audioMs });
    this.text += delta;
  }

  /** @param {number} ms */
  addAudio(ms) {
    this.audioMs += ms;
  }

  /** All audio of the reply has arrived. */
  complete() {
    this.isComplete = true;
  }

  /**
   * @param {number} playedMs of this reply's audio
   * @returns {number} characters of `text` heard by then
   */
  charsAt(playedMs) {
    const index = this.pieces.findLastIndex(({ atMs }) => atMs < playedMs);
    if (index < 0) return 0;
    const { chars, atMs } = this.pieces[index];
    const next = this.pieces[index + 1] ?? { chars: this.text.length, atMs: this.endMs };
    const share = Math.min(1, (playedMs - atMs) / Math.max(1, next.atMs - atMs));
    const reached = chars + Math.round(share * (next.chars - chars));
    const rest = this.text.slice(reached).search(/\s|$/);
    return reached === chars ? chars : Math.min(next.chars, reached + rest);
  }

  /** @private Where the newest piece will end. */
  get endMs() {
    const last = this.pieces[this.pieces.length - 1];
    if (this.isComplete) return this.audioMs;
    const letterMs = last.chars > 0 ? last.atMs / last.chars : LETTER_MS;
    return Math.max(this.audioMs, last.atMs + letterMs * (this.text.length - last.chars));
  }
}

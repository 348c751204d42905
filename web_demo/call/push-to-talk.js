/**
 * Push-to-talk: what is sent while something is held, and what letting go means.
 *
 * The turn ends with the batch of sound in which the key was let go: at once, but with the last 20 ms
 * of the word. Where no sound comes any more (the device is gone, the browser holds it back) it ends
 * all the same. Knows neither devices nor elements nor the wire.
 */

/** Less than this is a slip of the finger: no word is as short. */
export const SHORTEST_MS = 200;

/** A batch takes 20 ms, and its way to the page a few. */
const LAST_BATCH_MS = 80;

export class PushToTalk {
  /**
   * @param {object} to
   * @param {() => void} to.begin the caller takes the floor
   * @param {(said: boolean) => void} to.end he has let go; `said`: it was long enough to be speech
   */
  constructor(to) {
    /** @private */
    this.to = to;
    /** Otherwise the microphone is open, and everything is sent. */
    this.enabled = false;
    /** Somebody holds the key. */
    this.held = false;
    /** @private The key was let go, and the last batch is on its way. */
    this.ending = false;
    /** @private */
    this.heldMs = 0;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
  }

  /** @param {boolean} enabled switching it off lets go */
  enable(enabled) {
    if (!enabled) {
      this.release();
      this.finish();
    }
    this.enabled = enabled;
  }

  press() {
    if (!this.enabled || this.held) return;
    this.finish();
    this.held = true;
    this.heldMs = 0;
    this.to.begin();
  }

  release() {
    if (!this.held) return;
    this.held = false;
    this.ending = true;
    this.timer = setTimeout(() => this.finish(), LAST_BATCH_MS);
  }

  /**
   * Some sound has come.
   * @param {number} ms
   * @param {() => void} send called where it belongs to what is said
   */
  batch(ms, send) {
    if (!this.enabled) return send();
    if (!this.held && !this.ending) return;
    this.heldMs += ms;
    send();
    if (this.ending) this.finish();
  }

  /** @private */
  finish() {
    if (!this.ending) return;
    clearTimeout(this.timer);
    this.ending = false;
    this.to.end(this.heldMs >= SHORTEST_MS);
  }
}

/**
 * Push-to-talk: decides which audio is sent, and when a turn ends.
 *
 * The turn ends with the batch of audio in which the key was released, so the last 20 ms of the
 * word are included. When no audio arrives (the device was removed, the browser suspended it) a
 * timer ends the turn. Independent of devices, page elements and protocol.
 */

/** A shorter press is accidental: no word is as short. */
export const SHORTEST_MS = 200;

/** Timeout for the last batch: it takes 20 ms, and a few more to reach the page. */
const LAST_BATCH_MS = 80;

export class PushToTalk {
  /**
   * @param {object} to
   * @param {() => void} to.begin called when the key is pressed
   * @param {(said: boolean) => void} to.end called when the key is released; `said`: the press was
   *   long enough to be speech
   */
  constructor(to) {
    /** @private */
    this.to = to;
    /** False: the microphone is open, and all audio is sent. */
    this.enabled = false;
    /** True while the key is held. */
    this.held = false;
    /** @private The key was let go, and the last batch is on its way. */
    this.ending = false;
    /** @private */
    this.heldMs = 0;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
  }

  /** @param {boolean} enabled switching it off releases the key */
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
   * Process a batch of audio.
   * @param {number} ms
   * @param {() => void} send called when the batch belongs to the turn
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

/**
 * Notices that time has passed without the page: the laptop slept, the tab was frozen.
 *
 * A socket does not notice. The connection died on the far side while nobody here could be told, and
 * on this side it looks open until something has been sent in vain for a while. So the page looks at
 * the clock whenever it is at work: at each batch of sound, fifty times a second even in a tab in the
 * background, and by a timer where there is no sound. A jump means sleep, or a clock that was set; the
 * two look alike from here, so the listener should ask the server rather than hang up.
 */

/** Timers of tabs in the background run once a minute at the least. */
const AFTER_TIMER_MS = 75_000;

/** While sound comes, far less is strange; but the sound may have been switched off since. */
const AFTER_SOUND_MS = 15_000;

const LOOK_EVERY_MS = 10_000;

export class SleepDetector {
  /**
   * @param {(awayMs: number) => void} onWake
   * @param {() => number} [now] milliseconds that go on during sleep
   */
  constructor(onWake, now = () => Date.now()) {
    /** @private */
    this.onWake = onWake;
    /** @private */
    this.now = now;
    /** @private */
    this.lastMs = now();
    /** @private How long it may take until the page is at work again. */
    this.patienceMs = AFTER_TIMER_MS;
    setInterval(() => this.look(AFTER_TIMER_MS), LOOK_EVERY_MS);
  }

  /** A batch of sound has come. */
  heard() {
    this.look(AFTER_SOUND_MS);
  }

  /**
   * @private
   * @param {number} patienceMs from now on
   */
  look(patienceMs) {
    const now = this.now();
    const awayMs = now - this.lastMs;
    const wasAway = awayMs > this.patienceMs;
    this.lastMs = now;
    this.patienceMs = patienceMs;
    if (wasAway) this.onWake(awayMs);
  }
}

/**
 * Detects that the page did not run for a while: the laptop slept, the tab was frozen.
 *
 * The socket does not report it: the server closed the connection meanwhile, and the browser's side
 * looks open until sending has failed for a while. So the page reads the clock at each batch of
 * audio, fifty times a second even in a background tab, and by a timer when there is no audio. A
 * jump means sleep or a clock that was set; both look alike, so the listener should check the
 * connection rather than hang up.
 */

/** Threshold between timers: browsers run timers of background tabs at least once a minute. */
const AFTER_TIMER_MS = 75_000;

/** Threshold after a batch of audio: shorter, but audio may have been switched off since. */
const AFTER_SOUND_MS = 15_000;

const LOOK_EVERY_MS = 10_000;

export class SleepDetector {
  /**
   * @param {(awayMs: number) => void} onWake
   * @param {() => number} [now] milliseconds of a clock that runs during sleep
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

  /** Note a batch of audio. */
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

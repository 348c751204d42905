/**
 * Buffer of events for listeners whose modules are still loading. Holds events in order until they
 * are released, each with its time.
 *
 * @typedef {object} Moment
 * @property {number | null} atS by the audio context's clock; null without a context
 * @property {number} clockNumber number of that audio context
 * @property {number} pageMs by the page's clock, `performance.now`
 */
export class EventBuffer extends EventTarget {
  /**
   * @param {[EventTarget, string[]][]} sources and the types of their events
   * @param {() => Moment} clock read at each event; the forwarded event carries it
   * @param {number} most maximum number held; beyond it the oldest are dropped
   */
  constructor(sources, clock, most) {
    super();
    /** @private @type {Event[] | null} */
    this.held = [];
    /** @private */
    this.clock = clock;
    /** @private */
    this.most = most;
    for (const [source, types] of sources)
      for (const type of types)
        source.addEventListener(type, (event) => this.pass(/** @type {CustomEvent} */ (event)));
  }

  /** Forward the held events, and from now on each event at once. */
  release() {
    const held = this.held ?? /** @type {Event[]} */ ([]);
    this.held = null;
    for (const event of held) this.dispatchEvent(event);
  }

  /** Drop the held events. */
  drop() {
    if (this.held) this.held = [];
  }

  /**
   * @private
   * @param {CustomEvent} event
   */
  pass({ type, detail }) {
    const copy = Object.assign(new CustomEvent(type, { detail }), this.clock());
    if (!this.held) {
      this.dispatchEvent(copy);
      return;
    }
    this.held.push(copy);
    this.held.splice(0, this.held.length - this.most);
  }
}

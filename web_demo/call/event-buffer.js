/**
 * Passes events on to listeners that are fetched while these happen: holds them, in their order,
 * until they are released, and says when each was.
 *
 * @typedef {object} Moment
 * @property {number | null} atS by the devices' clock; null where there is none
 * @property {number} clockNumber which one that is
 * @property {number} pageMs by the page's clock, `performance.now`
 */
export class EventBuffer extends EventTarget {
  /**
   * @param {[EventTarget, string[]][]} sources and the types of their events
   * @param {() => Moment} clock read when one happens: the event that is passed on has it
   * @param {number} most held; then the oldest go
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

  /** Pass on what is held, and hold nothing any more. */
  release() {
    const held = this.held ?? /** @type {Event[]} */ ([]);
    this.held = null;
    for (const event of held) this.dispatchEvent(event);
  }

  /** What is held is of no interest any more. */
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

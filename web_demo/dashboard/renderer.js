/**
 * Draws what changed, once a frame, and nothing in a hidden tab: what was wanted there is drawn
 * when somebody looks again.
 */

export class Renderer {
  constructor() {
    /** @private @type {Set<() => void>} */
    this.wanted = new Set();
    /** @private */
    this.scheduled = false;
    document.addEventListener('visibilitychange', () => this.schedule());
  }

  /** @param {() => void} draw the same function each time, or it is drawn more than once */
  want(draw) {
    this.wanted.add(draw);
    this.schedule();
  }

  /** @private */
  schedule() {
    if (this.scheduled || document.hidden || this.wanted.size === 0) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      const drawn = this.wanted;
      this.wanted = new Set();
      for (const draw of drawn) draw();
    });
  }
}

/**
 * Writes text only where it differs: equal words are no change to the page or a screen reader.
 * @param {Element} element
 * @param {string} text
 */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * @template {HTMLElement} [E=HTMLElement]
 * @param {ParentNode} parent
 * @param {string} selector
 * @returns {E}
 */
export function find(parent, selector) {
  const found = parent.querySelector(selector);
  if (found === null) throw new Error(`the page has no ${selector}`);
  return /** @type {E} */ (found);
}

/**
 * Renders changes once a frame, and nothing in a hidden tab: pending changes are drawn when it is
 * visible again.
 */

export class Renderer {
  constructor() {
    /** @private @type {Set<() => void>} */
    this.wanted = new Set();
    /** @private */
    this.scheduled = false;
    document.addEventListener('visibilitychange', () => this.schedule());
  }

  /** @param {() => void} draw the same function each time, or it runs more than once */
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
 * Set an element's text only when it differs, so that screen readers do not repeat it.
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

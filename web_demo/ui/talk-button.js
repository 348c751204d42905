/**
 * Talk button, and the Space bar: starts and ends the call with an open microphone; is held to
 * speak with push-to-talk.
 *
 * It can be held by finger, mouse, pen or key, also by several at once until the last is released.
 * Losing the page (another window, a dialog, a system gesture) releases it as well: a microphone
 * that stays open unnoticed is the worst case. Screen readers and switches only click: one click
 * holds, the next releases.
 */

/**
 * @typedef {object} TalkActions
 * @property {() => boolean} isHeld true when the button is held rather than clicked
 * @property {() => void} toggle
 * @property {() => void} press
 * @property {() => void} release
 */

/** Elements in which the keys have another meaning. */
const HAS_OWN_KEYS = 'a, button, input, select, textarea, summary, [contenteditable], dialog';

/** Holder id of assistive technology. */
const CLICKED = 'click';

export class TalkButton {
  /**
   * @param {HTMLButtonElement} button
   * @param {TalkActions} actions
   */
  constructor(button, actions) {
    /** @private */
    this.button = button;
    /** @private */
    this.actions = actions;
    /** @private By which it is held. @type {Set<string>} */
    this.holders = new Set();
    this.listenToPointers();
    this.listenToKeys();
  }

  /** Release all holders. */
  letGo() {
    if (this.holders.size === 0) return;
    this.holders.clear();
    this.actions.release();
  }

  /** @private */
  listenToPointers() {
    const { button } = this;
    button.addEventListener('pointerdown', (event) => {
      if (!this.actions.isHeld() || event.button !== 0) return;
      button.setPointerCapture(event.pointerId);
      this.hold(`pointer ${event.pointerId}`);
    });
    for (const type of ['pointerup', 'pointercancel', 'lostpointercapture']) {
      button.addEventListener(type, (event) => {
        this.drop(`pointer ${/** @type {PointerEvent} */ (event).pointerId}`);
      });
    }
    button.addEventListener('contextmenu', (event) => {
      if (this.actions.isHeld()) event.preventDefault(); // a long touch must not open the context menu
    });
    button.addEventListener('click', (event) => this.click(event));
    globalThis.addEventListener('blur', () => this.letGo());
    document.addEventListener('visibilitychange', () => {
      if (document.hidden) this.letGo();
    });
  }

  /** @private */
  listenToKeys() {
    document.addEventListener('keydown', (event) => {
      if (!this.isMeant(event)) return;
      event.preventDefault();
      if (!event.repeat) this.hold(event.code);
    });
    document.addEventListener('keyup', (event) => {
      if (!this.holders.has(event.code)) return;
      event.preventDefault();
      this.drop(event.code);
    });
  }

  /**
   * @private
   * @param {KeyboardEvent} event
   */
  isMeant(event) {
    if (!this.actions.isHeld() || this.button.disabled) return false;
    if (event.ctrlKey || event.altKey || event.metaKey) return false;
    if (document.querySelector('dialog[open]')) return false;
    const target = event.target instanceof Element ? event.target : null;
    if (target === this.button) return event.code === 'Space' || event.code === 'Enter';
    return event.code === 'Space' && !target?.closest(HAS_OWN_KEYS);
  }

  /**
   * @private
   * @param {MouseEvent} event
   */
  click(event) {
    if (!this.actions.isHeld()) this.actions.toggle();
    else if (event.detail > 0) return; // from a pointer, which was handled already
    else if (this.holders.has(CLICKED)) this.drop(CLICKED);
    else this.hold(CLICKED);
  }

  /**
   * @private
   * @param {string} holder
   */
  hold(holder) {
    const isFirst = this.holders.size === 0;
    this.holders.add(holder);
    if (isFirst) this.actions.press();
  }

  /**
   * @private
   * @param {string} holder
   */
  drop(holder) {
    if (!this.holders.delete(holder)) return;
    if (this.holders.size === 0) this.actions.release();
  }
}

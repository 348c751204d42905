/**
 * The conversation on the page: one list entry per message.
 *
 * Words that may still change, or have not been heard yet, are pale; words nobody heard because of an
 * interruption are struck through. Screen readers get each message once, when it is complete: a
 * partial transcript that speaks itself every 200 ms helps nobody.
 */

import { turnBar } from './turn-bar.js';

/**
 * @typedef {import('./conversation.js').Message} Message
 * @typedef {import('./turn-bar.js').Turn} Turn
 */

const SPEAKERS = { caller: 'You', agent: 'Agent' };

/** Entries kept on the page; half an hour of talk stays light. */
const MAX_ENTRIES = 400;

/** Sentences kept for screen readers that lag behind. */
const MAX_ANNOUNCED = 20;

/** Scrolled up by less than this counts as "at the end": new words scroll into view. */
const NEAR_END_PX = 120;

export class Transcript {
  /**
   * @param {HTMLElement} scroller scrolls the list
   * @param {HTMLElement} list an `ol`
   * @param {HTMLElement} announcer a live region
   */
  constructor(scroller, list, announcer) {
    /** @private */
    this.scroller = scroller;
    /** @private */
    this.list = list;
    /** @private */
    this.announcer = announcer;
    /** @private @type {Map<string, HTMLElement>} */
    this.entries = new Map();
  }

  get isEmpty() {
    return this.list.childElementCount === 0;
  }

  /** @param {Message} message */
  show(message) {
    const { itemId, role, text, sureChars, state } = message;
    const known = this.entries.get(itemId);
    const entry = known ?? this.addEntry(itemId, role);
    const before = entry.dataset.state;
    entry.dataset.state = state;
    const words = /** @type {HTMLElement} */ (entry.querySelector('.words'));
    if (state === 'failed' && !text) words.replaceChildren(span('unsure', 'Not understood'));
    else words.replaceChildren(...spans(message));
    if (state !== 'live' && before !== state) {
      const cut = state === 'cut' ? ' (interrupted)' : '';
      const heard = state === 'cut' ? text.slice(0, sureChars) : text;
      this.announce(`${SPEAKERS[role]}: ${heard}${cut}`);
    }
    this.follow();
  }

  /** @param {string} itemId */
  remove(itemId) {
    this.entries.get(itemId)?.remove();
    this.entries.delete(itemId);
  }

  /**
   * @param {string} itemId of the turn's reply
   * @param {Turn} turn
   */
  addTurn(itemId, turn) {
    this.entries.get(itemId)?.append(turnBar(turn));
    this.follow();
  }

  /** @param {string} text a line between two conversations */
  addDivider(text) {
    const entry = document.createElement('li');
    entry.className = 'divider';
    entry.textContent = text;
    this.list.append(entry);
    this.follow();
  }

  /** Another conversation begins: it may use the names of the last one again. */
  beginAnew() {
    this.entries.clear();
  }

  /**
   * @private
   * @param {string} itemId
   * @param {'caller' | 'agent'} role
   * @returns {HTMLElement}
   */
  addEntry(itemId, role) {
    const entry = document.createElement('li');
    entry.className = `message ${role}`;
    const who = document.createElement('p');
    who.className = 'who';
    who.textContent = SPEAKERS[role];
    const words = document.createElement('p');
    words.className = 'words';
    entry.append(who, words);
    this.list.append(entry);
    this.entries.set(itemId, entry);
    if (this.list.childElementCount > MAX_ENTRIES) this.list.firstElementChild?.remove();
    for (const old of [...this.entries.keys()].slice(0, -MAX_ENTRIES)) this.entries.delete(old);
    return entry;
  }

  /** @private Keep the newest words in sight, unless the reader has scrolled away from them. */
  follow() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    const lastHeight = Number(this.scroller.dataset.height ?? 0);
    this.scroller.dataset.height = String(scrollHeight);
    if (lastHeight - scrollTop - clientHeight < NEAR_END_PX) this.scroller.scrollTop = scrollHeight;
  }

  /**
   * @private
   * @param {string} text
   */
  announce(text) {
    const line = document.createElement('p');
    line.textContent = text;
    this.announcer.append(line);
    if (this.announcer.childElementCount > MAX_ANNOUNCED)
      this.announcer.firstElementChild?.remove();
  }
}

/**
 * @param {Message} message
 * @returns {Node[]}
 */
function spans({ text, sureChars, state }) {
  const sure = span('sure', text.slice(0, sureChars));
  const rest = text.slice(sureChars);
  if (!text) return [span('dots', '')];
  if (!rest) return [sure];
  if (state !== 'cut') return [sure, span('unsure', rest)];
  const unheard = document.createElement('del');
  unheard.textContent = rest;
  unheard.title = 'Not heard: you interrupted';
  return [sure, unheard];
}

/**
 * @param {string} className
 * @param {string} text
 */
function span(className, text) {
  const made = document.createElement('span');
  made.className = className;
  made.textContent = text;
  return made;
}

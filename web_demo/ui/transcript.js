/**
 * Transcript on the page: one list entry per message.
 *
 * Words that may still change, or have not been played yet, are pale; words that were not played
 * because of an interruption are struck through. Screen readers get each message once, when it is
 * complete: a partial transcript that speaks itself every 200 ms is useless.
 */

import { element } from './dom.js';
import { spokenFigure, turnBar } from './turn-bar.js';

/**
 * @typedef {import('../call/conversation.js').Message} Message
 * @typedef {import('./turn-bar.js').Turn} Turn
 */

const SPEAKERS = { caller: 'You', agent: 'Agent' };

/** Maximum number of entries on the page: half an hour of talk. */
const MAX_ENTRIES = 400;

/** Maximum number of sentences in the live region, for screen readers that lag behind. */
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
    if (state === 'failed' && !text) words.replaceChildren(element('span', 'unsure', 'Not understood'));
    else words.replaceChildren(...spans(message));
    if (state !== 'live' && state !== 'unsent' && before !== state) {
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
    const entry = this.entries.get(itemId);
    if (!entry) return;
    this.showBelow(itemId, turnBar(turn));
    this.announce(spokenFigure(turn));
  }

  /**
   * Set the box below a message, which describes its turn.
   * @param {string} itemId
   * @param {HTMLElement} box
   */
  showBelow(itemId, box) {
    const entry = this.entries.get(itemId);
    entry?.querySelector('.turn')?.remove();
    entry?.append(box);
    this.showAtEnd(null);
    this.follow();
  }

  /** @param {HTMLElement | null} box kept below all messages, also future ones; null: none */
  showAtEnd(box) {
    this.list.querySelector('.at-end')?.remove();
    if (box) {
      const place = element('li', 'message agent at-end');
      place.append(box);
      this.list.append(place);
    }
    this.follow();
  }

  /**
   * Add a line between messages.
   * @param {string} className
   * @param {string} text
   * @returns {HTMLElement}
   */
  addLine(className, text) {
    const entry = element('li', className, text);
    this.append(entry);
    this.follow();
    return entry;
  }

  /** @param {string} text between two connections */
  addDivider(text) {
    this.addLine('divider', text);
  }

  /** Start a new conversation, which may reuse item ids. */
  beginAnew() {
    for (const [itemId, { dataset }] of this.entries)
      if (dataset.state !== 'unsent') this.entries.delete(itemId);
  }

  /**
   * @private
   * @param {string} itemId
   * @param {'caller' | 'agent'} role
   * @returns {HTMLElement}
   */
  addEntry(itemId, role) {
    const entry = element('li', `message ${role}`);
    entry.append(element('p', 'who', SPEAKERS[role]), element('p', 'words'));
    this.append(entry);
    this.entries.set(itemId, entry);
    for (const old of [...this.entries.keys()].slice(0, -MAX_ENTRIES)) this.entries.delete(old);
    return entry;
  }

  /**
   * @private
   * @param {HTMLElement} entry
   */
  append(entry) {
    this.list.append(entry);
    if (this.list.childElementCount > MAX_ENTRIES) this.list.firstElementChild?.remove();
  }

  /** @private Keep the newest words in sight, unless the reader has scrolled away from them. */
  follow() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    const lastHeight = Number(this.scroller.dataset.height ?? 0);
    this.scroller.dataset.height = String(scrollHeight);
    if (lastHeight - scrollTop - clientHeight < NEAR_END_PX) this.scroller.scrollTop = scrollHeight;
  }

  /** @param {string} text for screen readers */
  announce(text) {
    this.announcer.append(element('p', '', text));
    if (this.announcer.childElementCount > MAX_ANNOUNCED)
      this.announcer.firstElementChild?.remove();
  }
}

/**
 * @param {Message} message
 * @returns {Node[]}
 */
function spans({ role, text, sureChars, state }) {
  const sure = element('span', 'sure', text.slice(0, sureChars));
  const rest = text.slice(sureChars);
  if (!text) return [element('span', 'dots')];
  if (role === 'agent' && state === 'live') markLastWord(sure);
  if (!rest) return [sure];
  if (state !== 'cut') return [sure, element('span', 'unsure', rest)];
  const unheard = element('del', '', rest);
  unheard.title = 'Not heard: you interrupted';
  return [sure, unheard];
}

/**
 * Mark the word that is being played.
 * @param {HTMLElement} sure
 */
function markLastWord(sure) {
  const text = sure.textContent ?? '';
  const start = text.trimEnd().search(/\S+$/);
  if (start < 0) return;
  sure.textContent = text.slice(0, start);
  sure.append(element('span', 'now', text.slice(start)));
}

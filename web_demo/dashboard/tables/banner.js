/**
 * Banner for problems, each with a remedy. There are two cards: one in the page for lasting
 * problems, one above it for passing ones.
 */

import { element } from '../../ui/dom.js';
import { find, write } from '../renderer.js';

/**
 * @typedef {'key' | 'gone' | 'refused' | 'warming' | 'draining' | 'broken' | 'failed' | 'full' |
 *   'lost' | 'store' | 'degraded'} Code
 * @typedef {{title: string, text: string, mood: 'alarm' | 'note', button?: string}} Trouble
 */

/** Problems in order of severity. @type {Record<Code, Trouble>} */
const TROUBLES = {
  key: {
    title: 'This server needs a key',
    text: 'Its figures are for those who have one.',
    mood: 'note',
    button: 'Enter a key',
  },
  refused: {
    title: 'This key may not see the figures',
    text: '',
    mood: 'alarm',
    button: 'Use another key',
  },
  gone: {
    title: 'The server does not answer',
    text: 'The figures shown are the last known ones. This page keeps trying.',
    mood: 'alarm',
    button: 'Try now',
  },
  broken: { title: 'A part of the server does not work', text: 'Calls are refused.', mood: 'alarm' },
  warming: {
    title: 'The server is warming up',
    text: 'Its models are being loaded. Earlier turns can be read meanwhile.',
    mood: 'note',
  },
  draining: {
    title: 'The server is stopping',
    text: 'Calls in progress may finish; new ones are refused.',
    mood: 'note',
  },
  failed: { title: 'The figures cannot be loaded', text: '', mood: 'alarm', button: 'Try again' },
  full: {
    title: 'Too many dashboards are open',
    text: 'Figures are refreshed once a minute until there is room for this page.',
    mood: 'note',
    button: 'Try now',
  },
  lost: {
    title: 'Some events were missed',
    text: 'This page could not keep up; all its figures were read anew.',
    mood: 'note',
    button: 'All right',
  },
  store: {
    title: 'Only the newest turns are known',
    text: 'Times and profiles can’t be chosen, and nothing is shown over time.',
    mood: 'note',
  },
  degraded: { title: 'Calls work, but something beside them does not', text: '', mood: 'note' },
};

export class Banner {
  /**
   * @param {HTMLElement} card
   * @param {(code: Code) => void} onButton
   */
  constructor(card, onButton) {
    /** @private */
    this.card = card;
    /** @private @type {Map<Code, {more: string, stages: {name: string, state: string}[]}>} */
    this.present = new Map();
    /** @private */
    this.button = find(card, 'button');
    this.button.addEventListener('click', () => {
      if (this.shown) onButton(this.shown);
    });
  }

  /** @returns {Code | undefined} */
  get shown() {
    const codes = /** @type {Code[]} */ (Object.keys(TROUBLES));
    return codes.find((code) => this.present.has(code));
  }

  /**
   * @param {Code} code
   * @param {boolean} isPresent
   * @param {string} [more] message of the server
   * @param {{name: string, state: string}[]} [stages] progress of each stage
   */
  set(code, isPresent, more = '', stages = []) {
    if (isPresent) this.present.set(code, { more, stages });
    else if (!this.present.delete(code)) return;
    this.show();
  }

  /** @private */
  show() {
    const code = this.shown;
    this.card.hidden = code === undefined;
    if (code === undefined) return;
    const { title, text, mood, button } = TROUBLES[code];
    const { more, stages } = /** @type {{more: string, stages: {name: string, state: string}[]}} */ (
      this.present.get(code)
    );
    this.card.dataset.code = code;
    this.card.dataset.mood = mood;
    write(find(this.card, '.banner-title'), title);
    write(find(this.card, '.banner-text'), [text, more].filter(Boolean).join(' '));
    this.button.hidden = button === undefined;
    write(this.button, button ?? '');
    const lines = stages.map(({ name, state }) => stageLine(name, state));
    find(this.card, '.banner-stages').replaceChildren(...lines);
  }
}

/**
 * @param {string} name
 * @param {string} state
 */
function stageLine(name, state) {
  const line = element('li', '');
  line.dataset.state = state;
  line.append(element('span', '', name), element('span', '', state));
  return line;
}

/** The card that says what is wrong, or how far the server has warmed up. */

import { PROBLEMS } from './problems.js';

/**
 * @typedef {import('./problems.js').Action} Action
 * @typedef {import('./readiness.js').Readiness} Readiness
 */

export class Notice {
  /**
   * @param {HTMLElement} card with `.notice-title`, `.notice-text`, `.notice-stages` and a button
   * @param {(action: Action) => void} onAction
   */
  constructor(card, onAction) {
    /** @private */
    this.card = card;
    /** @private */
    this.title = find(card, '.notice-title');
    /** @private */
    this.text = find(card, '.notice-text');
    /** @private */
    this.stages = find(card, '.notice-stages');
    /** @private */
    this.button = find(card, 'button');
    /** Code of the problem on show; empty for none. */
    this.code = '';
    this.button.addEventListener('click', () => {
      const { action } = PROBLEMS[this.code] ?? { action: 'dismiss' };
      this.clear();
      onAction(action);
    });
  }

  /**
   * @param {string} code a key of PROBLEMS
   * @param {string} [more] the server's words, or what happens next
   */
  show(code, more = '') {
    const problem = PROBLEMS[code];
    // A note does not push an alarm aside.
    if (problem.mild && this.code && !PROBLEMS[this.code]?.mild) return;
    this.write(code, problem.title, more ? `${problem.text} ${more}` : problem.text);
    this.button.textContent = problem.label;
    this.button.hidden = false;
    this.card.dataset.mood = problem.mild ? 'note' : 'alarm';
  }

  /** @param {Readiness} readiness */
  showWarming({ status, stages }) {
    const text =
      status === 'warming'
        ? 'The models are being loaded. You can talk as soon as they are warm.'
        : `The server says: ${status}. This page keeps asking.`;
    this.write(status, 'One moment', text);
    this.button.hidden = true;
    this.card.dataset.mood = 'note';
    for (const { name, state } of stages) {
      const line = document.createElement('li');
      line.dataset.state = state;
      const label = document.createElement('span');
      label.textContent = name;
      const value = document.createElement('span');
      value.textContent = state;
      line.append(label, value);
      this.stages.append(line);
    }
  }

  /** @param {string} [code] only if this is the problem on show */
  clear(code) {
    if (code !== undefined && code !== this.code) return;
    this.code = '';
    this.card.hidden = true;
  }

  /**
   * @private
   * @param {string} code
   * @param {string} title
   * @param {string} text
   */
  write(code, title, text) {
    this.code = code;
    this.card.dataset.code = code;
    // Rewriting equal words would make a screen reader say them again.
    if (this.title.textContent !== title) this.title.textContent = title;
    if (this.text.textContent !== text) this.text.textContent = text;
    this.stages.replaceChildren();
    this.card.hidden = false;
  }
}

/**
 * @param {HTMLElement} parent
 * @param {string} selector
 * @returns {HTMLElement}
 */
function find(parent, selector) {
  return /** @type {HTMLElement} */ (parent.querySelector(selector));
}

/** Notice card: the current problem, or the progress of the server's warm-up. */

import { element } from './dom.js';
import { PROBLEMS, secureAddresses } from './problems.js';

/**
 * @typedef {import('./problems.js').Action} Action
 * @typedef {import('../call/readiness.js').Readiness} Readiness
 */

/** @type {Record<string, string>} */
const STATUS_TEXT = {
  broken: 'A part of the service is being restarted.',
  failed: 'A part of the service cannot be started; the reason is in the server’s log.',
  draining: 'The server is stopping; its successor takes over.',
};

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
    /** Code of the displayed problem; empty for none. */
    this.code = '';
    this.button.addEventListener('click', () => {
      const { action } = PROBLEMS[this.code] ?? { action: 'dismiss' };
      this.clear();
      onAction(action);
    });
  }

  /**
   * @param {string} code a key of PROBLEMS
   * @param {string} [more] message of the server, or what happens next
   */
  show(code, more = '') {
    const problem = PROBLEMS[code];
    if (code === 'insecure-context') more ||= secureAddresses(globalThis.location);
    // A note does not replace an alarm.
    if (problem.mild && this.code && !PROBLEMS[this.code]?.mild) return;
    this.write(code, problem.title, more ? `${problem.text} ${more}` : problem.text);
    this.showStages([]);
    this.button.textContent = problem.label;
    this.button.hidden = false;
    this.card.dataset.mood = problem.mild ? 'note' : 'alarm';
  }

  /** @param {Readiness} readiness */
  showWarming({ status, stages }) {
    const text =
      status === 'warming'
        ? 'The models are being loaded. You can talk as soon as they are warm.'
        : `${STATUS_TEXT[status] ?? 'The server is not ready.'} This page keeps asking.`;
    this.write(status, 'One moment', text);
    this.button.hidden = true;
    this.card.dataset.mood = 'note';
    this.showStages(stages);
  }

  /**
   * @private
   * @param {import('../call/readiness.js').Stage[]} stages
   */
  showStages(stages) {
    const shown = JSON.stringify(stages);
    if (this.stages.dataset.shown === shown) return;
    this.stages.dataset.shown = shown;
    this.stages.replaceChildren(...stages.map(stageLine));
  }

  /** @param {string} [code] hide only this problem */
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
    // Rewriting equal text would make a screen reader repeat it.
    if (this.title.textContent !== title) this.title.textContent = title;
    if (this.text.textContent !== text) this.text.textContent = text;
    this.card.hidden = false;
  }
}

/** @param {import('../call/readiness.js').Stage} stage */
function stageLine({ label, state, share }) {
  const line = element('li', '');
  line.dataset.state = state;
  const bar = /** @type {HTMLProgressElement} */ (element('progress', ''));
  bar.setAttribute('aria-label', label);
  if (share !== null) bar.value = share;
  line.append(element('span', '', label), bar, element('span', '', state));
  return line;
}

/**
 * @param {HTMLElement} parent
 * @param {string} selector
 * @returns {HTMLElement}
 */
function find(parent, selector) {
  return /** @type {HTMLElement} */ (parent.querySelector(selector));
}

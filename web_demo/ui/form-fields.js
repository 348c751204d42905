/** Form fields of the settings: label, input, hint and error text. */

import { element } from './dom.js';

/**
 * @typedef {object} Field
 * @property {HTMLElement} box
 * @property {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} input
 * @property {() => string | number | boolean} value
 * @property {(value: string | number | boolean) => void} show
 * @property {(text: string) => void} hint
 * @property {(problem: string) => void} showError empty: no error
 *
 * @typedef {object} Option
 * @property {string} id
 * @property {string} label
 */

/**
 * @param {string} name
 * @param {string} label
 * @param {string} hint
 * @param {readonly (readonly [string, string])[]} [options] value and label of each
 * @returns {Field}
 */
export function selectField(name, label, hint, options = []) {
  const input = /** @type {HTMLSelectElement} */ (element('select', ''));
  input.append(...options.map(([value, words]) => new Option(words, value)));
  return field(name, label, hint, input);
}

/**
 * @param {string} name
 * @param {string} label
 * @param {{least: number, most: number}} range
 * @returns {Field}
 */
export function numberField(name, label, { least, most }) {
  const input = /** @type {HTMLInputElement} */ (element('input', ''));
  input.type = 'number';
  input.min = String(least);
  input.max = String(most);
  input.step = '1';
  return { ...field(name, label, '', input), value: () => input.valueAsNumber };
}

/**
 * @param {string} name
 * @param {string} label
 * @param {string} hint
 * @param {number} maxChars
 * @returns {Field}
 */
export function textField(name, label, hint, maxChars) {
  const input = /** @type {HTMLTextAreaElement} */ (element('textarea', ''));
  input.rows = 4;
  input.maxLength = maxChars;
  return field(name, label, hint, input);
}

/**
 * @param {string} name
 * @param {string} label
 * @param {string} hint
 * @returns {Field}
 */
export function switchField(name, label, hint) {
  const input = /** @type {HTMLInputElement} */ (element('input', ''));
  input.type = 'checkbox';
  input.setAttribute('role', 'switch');
  const made = field(name, label, hint, input);
  made.box.classList.add('setting-switch');
  const show = (/** @type {string | number | boolean} */ on) => {
    input.checked = Boolean(on);
  };
  return { ...made, value: () => input.checked, show };
}

/**
 * Fill a select field. The chosen option is kept even when it is unavailable.
 * @param {Field} choice made by `selectField`
 * @param {string} none label of the empty option
 * @param {Option[]} options
 * @param {string} chosen
 */
export function fillSelect({ input }, none, options, chosen) {
  const entries = [{ id: '', label: none }, ...options];
  if (!entries.some(({ id }) => id === chosen)) {
    entries.push({ id: chosen, label: 'The one chosen before, not here now' });
  }
  const shown = JSON.stringify(entries);
  if (input.dataset.shown !== shown) {
    input.dataset.shown = shown;
    input.replaceChildren(...entries.map(({ id, label }) => new Option(label, id)));
  }
  input.value = chosen;
}

/**
 * @param {string} name
 * @param {string} labelText
 * @param {string} hintText
 * @param {Field['input']} input
 * @returns {Field}
 */
function field(name, labelText, hintText, input) {
  const id = `setting-${name}`;
  input.id = id;
  const label = /** @type {HTMLLabelElement} */ (element('label', '', labelText));
  label.htmlFor = id;
  const hint = element('p', 'setting-hint', hintText);
  hint.id = `${id}-hint`;
  const problem = element('p', 'setting-problem');
  problem.id = `${id}-problem`;
  problem.setAttribute('role', 'alert');
  input.setAttribute('aria-describedby', `${hint.id} ${problem.id}`);
  const box = element('div', 'setting');
  box.append(label, input, hint, problem);
  return {
    box,
    input,
    value: () => input.value,
    show: (value) => {
      if (document.activeElement !== input || input.value === '') input.value = String(value);
    },
    hint: (text) => {
      hint.textContent = text;
    },
    showError: (text) => {
      problem.textContent = text;
      input.setAttribute('aria-invalid', String(text !== ''));
    },
  };
}

/**
 * Latency of one turn by stage, drawn to scale with the 500 ms line.
 *
 * A stage has two times. Spent: how long it worked. Exposed: how much of that the caller waited
 * for; the rest was hidden behind the caller's own speech or behind another stage. The bar shows
 * the exposed times, which add up to the wait; the table has both.
 */

import { element } from './dom.js';
import { BUDGET_MS, STAGE_NAMES } from './stages.js';

/**
 * @typedef {object} Turn
 * @property {number} turn
 * @property {string} caller_text
 * @property {string} agent_text as far as it was heard
 * @property {number | null} e2e_ear_ms last voiced frame to first audible sample played
 * @property {number} e2e_server_ms the same, to that sample leaving the server
 * @property {boolean} cut_in
 * @property {boolean} interrupted
 * @property {boolean} [opener] prepared words were said before the reply
 * @property {'cut_in' | 'interrupted' | 'reopened' | null} [outcome] how the caller took the reply
 * @property {Record<string, {spent_ms: number, exposed_ms: number}>} stages
 * @property {number} reply_s
 * @property {string} [item_id] of the reply
 */

/** Minimum right end of the axis, so that the line is visible and turns are comparable. */
const AXIS_MS = 750;

/** Stages with less exposed time are neither drawn nor named above the table. */
const DRAWN_MS = 0.5;

/**
 * Length of the axis in ms.
 * @param {number} waitMs
 */
export function axisMs(waitMs) {
  return Math.max(AXIS_MS, waitMs * 1.05);
}

/**
 * Position of the budget's line, in per cent.
 * @param {number} axis in ms
 */
export function limitAt(axis) {
  return `${(100 * BUDGET_MS) / axis}%`;
}

/**
 * Text for screen readers.
 * @param {Turn} turn
 */
export function spokenFigure(turn) {
  if (turn.cut_in) return 'The agent spoke before you had finished.';
  return `Answered after ${Math.round(turn.e2e_ear_ms ?? turn.e2e_server_ms)} milliseconds.`;
}

/**
 * @param {Turn} turn
 * @returns {HTMLElement}
 */
export function turnBar(turn) {
  const waitMs = turn.e2e_ear_ms ?? turn.e2e_server_ms;
  const stages = Object.entries(turn.stages ?? {})
    .filter(([, { spent_ms, exposed_ms }]) => spent_ms >= DRAWN_MS || exposed_ms >= DRAWN_MS)
    .map(([name, times]) => ({ name, label: STAGE_NAMES[name] ?? name, ...times }));
  const box = element('div', 'turn');
  box.setAttribute('role', 'group');
  box.setAttribute('aria-label', 'Latency of this turn');
  box.dataset.waitMs = String(Math.round(waitMs));
  box.append(headline(turn, waitMs));
  if (stages.length > 0) box.append(bar(stages, waitMs), details(stages));
  return box;
}

/**
 * @param {Turn} turn
 * @param {number} waitMs
 */
function headline(turn, waitMs) {
  const line = element('p', 'turn-headline');
  if (turn.cut_in) {
    line.append(element('strong', 'over', 'Cut in'), ' The agent spoke before you had finished.');
    return line;
  }
  const within = waitMs <= BUDGET_MS;
  const figure = element('strong', within ? 'within' : 'over', `${Math.round(waitMs)} ms`);
  const where = turn.e2e_ear_ms === null ? 'sent' : 'heard';
  const verdict = within ? '' : ` · ${Math.round(waitMs - BUDGET_MS)} ms over budget`;
  const note = element(
    'span',
    'turn-note',
    `from your last word to the first sound ${where}${verdict}`,
  );
  line.append(figure, ' ', note);
  return line;
}

/**
 * @param {{name: string, label: string, exposed_ms: number}[]} stages
 * @param {number} waitMs
 */
function bar(stages, waitMs) {
  const axis = axisMs(waitMs);
  const exposed = stages.filter(({ exposed_ms }) => exposed_ms >= DRAWN_MS);
  const track = element('div', 'turn-track');
  track.setAttribute('role', 'img');
  const spoken = exposed.map(({ label, exposed_ms }) => `${label} ${Math.round(exposed_ms)} ms`);
  track.setAttribute('aria-label', `${spoken.join(', ')}. The line stands at ${BUDGET_MS} ms.`);
  for (const { name, label, exposed_ms } of exposed) {
    const part = element('span', 'turn-part');
    part.dataset.stage = name;
    part.title = `${label}: ${Math.round(exposed_ms)} ms`;
    part.style.width = `${(100 * exposed_ms) / axis}%`;
    track.append(part);
  }
  const limit = element('span', 'turn-limit');
  limit.append(element('span', '', `${BUDGET_MS} ms`));
  limit.style.left = limitAt(axis);
  track.append(limit);
  return track;
}

/** @param {{name: string, label: string, spent_ms: number, exposed_ms: number}[]} stages */
function details(stages) {
  const box = element('details', 'turn-details');
  const summary = element('summary', '');
  summary.append(element('span', 'unseen', 'Where the time went: '), legend(stages));
  box.append(summary);
  box.addEventListener('toggle', () => box.scrollIntoView({ block: 'nearest' }));
  const table = element('table', '');
  const head = element('tr', '');
  for (const title of ['Stage', 'Worked', 'You waited']) head.append(cell('th', title));
  table.append(head);
  for (const { name, label, spent_ms, exposed_ms } of stages) {
    const row = element('tr', '');
    const title = cell('th', label);
    title.setAttribute('scope', 'row');
    title.prepend(dot(name));
    row.append(title, cell('td', milliseconds(spent_ms)), cell('td', milliseconds(exposed_ms)));
    table.append(row);
  }
  const note =
    'What a stage worked and you did not wait for happened while you were still speaking, or beside another stage.';
  box.append(table, element('p', '', note));
  return box;
}

/** @param {{name: string, label: string, exposed_ms: number}[]} stages */
function legend(stages) {
  const list = element('span', 'legend');
  for (const { name, label, exposed_ms } of stages) {
    if (exposed_ms < DRAWN_MS) continue;
    const entry = element('span', '');
    entry.append(dot(name), `${label} ${Math.round(exposed_ms)}`);
    list.append(entry, ' ');
  }
  return list;
}

/** @param {string} stage */
function dot(stage) {
  const made = element('span', 'dot');
  made.dataset.stage = stage;
  return made;
}

/** @param {number} ms */
function milliseconds(ms) {
  return `${Math.round(ms)} ms`;
}

/**
 * @param {'th' | 'td'} tag
 * @param {string} text
 */
function cell(tag, text) {
  return element(tag, '', text);
}

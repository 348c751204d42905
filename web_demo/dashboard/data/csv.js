/** CSV exports: all turns of a query, page by page, and the distributions. */

import { rowOf, STAGES } from './turn-row.js';

/** @typedef {import('./turn-row.js').Turn} Turn */

const PAGE = 1000;

/**
 * Spreadsheets read cells that begin with these characters as formulas, and texts come from
 * callers.
 */
const FORMULA = /^[=+\-@\t\r]/;

const HEADS = [
  ...['at', 'session', 'turn', 'agent', 'profile', 'budget_ms', 'e2e_ear_ms', 'e2e_server_ms'],
  ...['e2e_raw_ms', 'within', 'cut_in', 'interrupted', 'opener', 'reply_s', 'actions'],
  ...STAGES.flatMap((stage) => [`${stage}_spent_ms`, `${stage}_exposed_ms`]),
  ...['caller_text', 'agent_text', 'outcome', 'replica'],
];

/**
 * Save all turns of a query, not only those on the page, newest first.
 * @param {import('./api.js').Api} api
 * @param {import('./api.js').Query} query
 * @param {(done: number) => void} tell progress: number of turns so far
 */
export async function saveTurns(api, query, tell) {
  const parts = [line(HEADS)];
  let done = 0;
  /** @type {number | null} */
  let before = null;
  do {
    /** @type {{turns: Turn[], before?: number | null}} */
    const answer = await api.json('v1/latency/turns', { ...query, limit: PAGE, before });
    parts.push(answer.turns.toReversed().map(turnLine).join(''));
    done += answer.turns.length;
    before = answer.before ?? null;
    tell(done);
  } while (before !== null);
  save(parts, 'halfsec-turns.csv');
}

/** @param {import('../charts/distribution.js').Histograms} histograms */
export function saveDistributions({ e2e = [], stages = {} }) {
  const parts = [line(['what', 'upper_ms', 'turns'])];
  for (const [what, buckets] of Object.entries({ e2e, ...stages })) {
    for (const [upper, turns] of buckets) parts.push(line([what, upper, turns]));
  }
  save(parts, 'halfsec-distributions.csv');
}

/** @param {Turn} turn */
function turnLine(turn) {
  const { within, budgetMs, agent, profile } = rowOf(turn);
  return line([
    ...[turn.at, turn.session, turn.turn, agent, profile, budgetMs, turn.e2e_ear_ms],
    ...[turn.e2e_server_ms, turn.e2e_raw_ms, within, turn.cut_in, turn.interrupted, turn.opener],
    ...[turn.reply_s, (turn.actions ?? []).map(({ action }) => action).join(' ')],
    ...STAGES.flatMap((stage) => [turn.stages?.[stage]?.spent_ms, turn.stages?.[stage]?.exposed_ms]),
    ...[turn.caller_text, turn.agent_text, turn.outcome, turn.replica],
  ]);
}

/** @param {(string | number | boolean | null | undefined)[]} cells */
function line(cells) {
  return `${cells.map(cell).join(',')}\r\n`;
}

/** @param {string | number | boolean | null | undefined} value */
function cell(value) {
  if (typeof value !== 'string') return String(value ?? '');
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/**
 * @param {string[]} parts
 * @param {string} name
 */
function save(parts, name) {
  const url = URL.createObjectURL(new Blob(parts, { type: 'text/csv;charset=utf-8' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}

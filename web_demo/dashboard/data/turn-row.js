/** Row of the turn table: small enough that a day of turns fits into the page. */

import { STAGE_NAMES } from '../../ui/stages.js';

export const STAGES = Object.keys(STAGE_NAMES);

/**
 * A turn as the server sends it; unknown fields are null or missing.
 * @typedef {object} Turn
 * @property {string} session
 * @property {number} turn
 * @property {number | null} [row] its place in the store
 * @property {string | null} [at] when it ended
 * @property {string | null} [agent]
 * @property {string} [replica] the server that had it
 * @property {string} [caller_text]
 * @property {string} [agent_text]
 * @property {number | null} [e2e_ear_ms]
 * @property {number | null} [e2e_server_ms]
 * @property {number | null} [e2e_raw_ms]
 * @property {number | null} [paced_ms]
 * @property {boolean} [opener]
 * @property {boolean} [cut_in]
 * @property {boolean} [interrupted]
 * @property {boolean} [reopened] it goes on with the turn before
 * @property {'cut_in' | 'interrupted' | 'reopened' | null} [outcome] how the caller took the reply
 * @property {number | null} [reply_s]
 * @property {Action[]} [actions]
 * @property {Record<string, {spent_ms: number, exposed_ms: number}>} [stages]
 * @property {{profile: string, total_ms: number, widened_ms?: number}} [budget]
 * @property {Waterfall} [waterfall]
 * @property {{name: string, ms: number}[] | null} [marks]
 * @property {{from_s: number, to_s: number} | null} [recording]
 *
 * @typedef {{action: string, predicted_ms: number, saved_ms: number | null}} Action
 * @typedef {{stage: string, start_ms: number, end_ms: number}} Span
 *
 * @typedef {object} Waterfall
 * @property {string} [origin]
 * @property {Span[]} [spans]
 * @property {Span[]} [path]
 * @property {number} [wasted_ms]
 * @property {number} [wasted_prompt_tokens]
 * @property {number} [wasted_output_tokens]
 * @property {string[]} [incomplete]
 *
 * @typedef {object} Row
 * @property {string} key
 * @property {string} session
 * @property {number} turn
 * @property {number | null} row
 * @property {number | null} atMs since 1970
 * @property {string} agent
 * @property {string} profile
 * @property {number} budgetMs
 * @property {number | null} waitMs from the caller's last word to the first sound
 * @property {boolean} heard true when measured at the caller's ear, not at the server
 * @property {boolean | null} within its budget; null when there was no wait
 * @property {string} note remark about the turn
 * @property {number[]} exposedMs in the order of STAGES
 */

/** @param {{session: string, turn: number}} turn */
export function keyOf({ session, turn }) {
  return `${session}/${turn}`;
}

/**
 * @param {Turn} turn
 * @returns {Row}
 */
export function rowOf(turn) {
  const waitMs = turn.e2e_ear_ms ?? turn.e2e_server_ms ?? null;
  const budgetMs = turn.budget?.total_ms ?? 500;
  const rawMs = turn.e2e_raw_ms ?? waitMs;
  const at = Date.parse(turn.at ?? '');
  return {
    key: keyOf(turn),
    session: turn.session,
    turn: turn.turn,
    row: turn.row ?? null,
    atMs: Number.isNaN(at) ? null : at,
    agent: turn.agent ?? '',
    profile: turn.budget?.profile ?? '',
    budgetMs,
    waitMs,
    heard: typeof turn.e2e_ear_ms === 'number',
    within: rawMs === null ? null : rawMs <= budgetMs,
    note: note(turn, waitMs),
    exposedMs: STAGES.map((stage) => turn.stages?.[stage]?.exposed_ms ?? 0),
  };
}

/**
 * @param {Turn} turn
 * @param {number | null} waitMs
 */
function note(turn, waitMs) {
  const origin = turn.waterfall?.origin;
  const words = [];
  if (origin === 'greeting') words.push('greeting');
  else if (turn.cut_in) words.push('cut in');
  else if (turn.outcome === 'reopened') words.push('re-opened');
  else if (waitMs === null) words.push(turn.reply_s ? 'time unknown' : 'not answered');
  if (origin === 'reply_requested') words.push('typed');
  if (turn.opener) words.push('opener');
  if (turn.interrupted) words.push('interrupted');
  if (turn.actions?.some(({ action }) => action !== 'opener')) words.push('acted on');
  if (turn.waterfall?.incomplete?.length) words.push('incomplete');
  return words.join(', ');
}

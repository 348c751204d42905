/**
 * Turns of the current query, newest first, loaded as far as the user scrolled.
 *
 * Older turns are loaded a page at a time, new ones are added as they end, both in the server's
 * order, not by time: clocks jump. The list is bounded; the oldest turns are dropped and loaded
 * again on scrolling.
 */

import { ServerError } from './api.js';
import { keyOf, rowOf } from './turn-row.js';

/**
 * @typedef {import('./turn-row.js').Row} Row
 * @typedef {import('./turn-row.js').Turn} Turn
 * @typedef {{since: string, until: string, profile: string, replica?: string, session: string}} Wanted
 */

/** About 300 bytes each. */
export const MAX_ROWS = 20_000;
const FIRST_PAGE = 100;
const PAGE = 500;

export class TurnList {
  /**
   * @param {import('./api.js').Api} api
   * @param {(numNew: number) => void} onChange called with the number of rows added on top
   */
  constructor(api, onChange) {
    /** @private */
    this.api = api;
    /** @private */
    this.onChange = onChange;
    /** @private @type {Row[]} oldest first: new ones come at the end */
    this.rows = [];
    /** @private @type {Map<string, Row>} */
    this.known = new Map();
    /** @private @type {Wanted | null} */
    this.wanted = null;
    /** @private @type {number | null} where the next older page ends; null: there is none */
    this.before = null;
    /** @private @type {AbortController | null} */
    this.asking = null;
    /** @private @type {Turn[] | null} ended while a first page was on its way */
    this.early = null;
    /** True when older turns were dropped. */
    this.wasCut = false;
    /** True until the first response. */
    this.isLoading = true;
    /** The server's reason why older turns are unavailable; empty when they are available. */
    this.noHistory = '';
    /** Last error; empty for none. */
    this.problem = '';
  }

  get length() {
    return this.rows.length;
  }

  /** True when older turns can be loaded. */
  get hasMore() {
    return this.before !== null && !this.isFull;
  }

  /** True when the list is full. */
  get isFull() {
    return this.rows.length >= MAX_ROWS;
  }

  /**
   * @param {number} place 0: the newest
   * @returns {Row}
   */
  at(place) {
    return this.rows[this.rows.length - 1 - place];
  }

  /**
   * @param {string} key
   * @returns {Row | null}
   */
  rowOf(key) {
    return this.known.get(key) ?? null;
  }

  /** @param {string} key */
  placeOf(key) {
    const row = this.known.get(key);
    return row === undefined ? -1 : this.rows.length - 1 - this.rows.lastIndexOf(row);
  }

  /**
   * Load the turns of another query.
   * @param {Wanted} wanted
   */
  async reset(wanted) {
    this.rows = [];
    this.known.clear();
    this.before = null;
    this.wasCut = false;
    this.isLoading = true;
    this.onChange(0);
    await this.refresh(wanted);
  }

  /**
   * Load the newest page and add new turns on top. Starts again when there may be a gap.
   * @param {Wanted} wanted
   */
  async refresh(wanted) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.wanted = wanted;
    this.early = [];
    try {
      const answer = await this.firstPage(wanted, asking.signal);
      if (this.asking !== asking) return;
      this.problem = '';
      this.merge(answer);
    } catch (error) {
      if (this.asking !== asking || !(error instanceof ServerError)) return;
      this.problem = error.message;
    }
    this.asking = null;
    this.isLoading = false;
    /** @type {Turn[]} */
    const early = this.early ?? [];
    this.early = null;
    this.onChange(0);
    for (const turn of early) this.add(turn);
  }

  /** Load the next older page. */
  async more() {
    if (this.asking !== null || !this.hasMore) return;
    const asking = (this.asking = new AbortController());
    try {
      const query = { ...this.wanted, limit: PAGE, before: this.before };
      const answer = await this.api.json('v1/latency/turns', query, asking.signal);
      if (this.asking !== asking) return;
      const older = unknown(answer.turns, this.known);
      const cut = older.splice(0, Math.max(0, this.rows.length + older.length - MAX_ROWS));
      for (const { key } of cut) this.known.delete(key);
      this.rows = [...older, ...this.rows];
      this.before = cut.length > 0 ? this.rows[0].row : (answer.before ?? null);
      this.problem = '';
    } catch (error) {
      if (this.asking !== asking || !(error instanceof ServerError)) return;
      this.problem = error.message;
    }
    this.asking = null;
    this.onChange(0);
  }

  /**
   * Add a turn that has just ended.
   * @param {Turn} turn
   */
  add(turn) {
    const { wanted } = this;
    if (wanted === null || this.isLoading || this.early !== null) {
      if (this.early !== null && this.early.length < MAX_ROWS) this.early.push(turn);
      return;
    }
    const row = rowOf(turn);
    if (wanted.session && row.session !== wanted.session) return;
    if (wanted.profile && row.profile !== wanted.profile) return;
    if (wanted.replica && turn.replica !== wanted.replica) return;
    const old = this.known.get(row.key);
    if (old !== undefined) {
      Object.assign(old, { ...row, atMs: row.atMs ?? old.atMs, row: row.row ?? old.row });
      this.onChange(0);
      return;
    }
    this.rows.push(row);
    this.known.set(row.key, row);
    this.trim();
    this.onChange(1);
  }

  /**
   * Fetch from the store, or from the server's memory when it has none.
   * @private
   * @param {Wanted} wanted
   * @param {AbortSignal} signal
   */
  async firstPage(wanted, signal) {
    try {
      const query = { ...wanted, limit: FIRST_PAGE };
      const answer = await this.api.json('v1/latency/turns', query, signal);
      this.noHistory = '';
      return answer;
    } catch (error) {
      if (!(error instanceof ServerError) || error.status !== 400) throw error;
      this.noHistory = error.message;
    }
    const query = { session: wanted.session, limit: 1000 };
    return this.api.json('v1/latency/turns', query, signal);
  }

  /**
   * @private
   * @param {{turns: Turn[], before?: number | null}} answer
   */
  merge({ turns, before }) {
    const isGapless = turns.length < FIRST_PAGE || turns.some((turn) => this.known.has(keyOf(turn)));
    if (this.rows.length === 0 || !isGapless) {
      this.rows = [];
      this.known.clear();
      this.before = before ?? null;
      this.wasCut = false;
    }
    const fresh = unknown(turns, this.known);
    this.rows.push(...fresh);
    this.trim();
    if (fresh.length > 0) this.onChange(fresh.length);
  }

  /** @private */
  trim() {
    if (this.rows.length <= MAX_ROWS) return;
    // Drops more than necessary, so that not every turn moves all rows.
    for (const { key } of this.rows.splice(0, PAGE)) this.known.delete(key);
    this.before = this.rows[0].row;
    this.wasCut = true;
  }
}

/**
 * @param {Turn[]} turns
 * @param {Map<string, Row>} known updated with the new rows
 * @returns {Row[]} rows of turns that were unknown
 */
function unknown(turns, known) {
  const rows = [];
  for (const turn of turns) {
    const row = rowOf(turn);
    const old = known.get(row.key);
    if (old !== undefined) {
      old.row ??= row.row; // when it ended it was not in the store yet
      continue;
    }
    known.set(row.key, row);
    rows.push(row);
  }
  return rows;
}

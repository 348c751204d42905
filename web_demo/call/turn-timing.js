/**
 * Timing of the running turn: the stages that the caller has waited for so far, and the active one.
 *
 * The server sends each mark at once (`halfsec.mark`), at first for a turn without a number,
 * because the end of the turn is not decided yet. Repeated marks (another pause, another attempt at
 * the reply) replace earlier ones, as in the server's own account.
 *
 * Times are the server's, after the session's start. Each mark carries the server's current time;
 * the smallest difference to the page's clock gives the offset, except for the one-way network
 * delay. So the displayed time may be short by a round trip until the account replaces it. Pure.
 */

/**
 * @typedef {object} Stretch
 * @property {string} stage
 * @property {number} fromMs after the caller's last word
 * @property {number} toMs
 *
 * @typedef {object} LiveTurn
 * @property {number} elapsedMs since the caller's last word, or to the first sound heard
 * @property {Stretch[]} waited what the caller waited for, without gaps
 * @property {Stretch[]} ahead work that is hidden behind end-of-turn detection
 * @property {string} stage active stage, or the last one
 * @property {boolean} heard true when the agent's first audible sample was played
 *
 * @typedef {{turn: number | null, name: string, at_ms: number, now_ms: number}} Mark
 */

/** Number of marks used to estimate the clock offset: a few turns, because clocks drift. */
const MAX_OFFSETS = 64;

/** Limit after which a turn is no longer shown. */
const MAX_TURN_MS = 30_000;

/**
 * An end of turn that follows the final transcript within this time was decided by its arrival: the
 * silence had been long enough, and the recognizer was the bottleneck.
 */
const AT_ONCE_MS = 2;

/** Marks of an attempt at the reply; a new attempt discards them. */
const ATTEMPT = [
  'reply_requested',
  'llm_first_token',
  'first_piece',
  'tts_start',
  'tts_first_chunk',
  'first_audible_ready',
];

/** Consecutive stages, each with the mark that ends it. */
const BOUNDARIES = [
  ['capture', 'audio_received'],
  ['endpoint', 'endpoint'],
  ['asr', 'asr_final'],
  ['llm_prefill', 'llm_first_token'],
  ['llm_clause', 'first_piece'],
  ['tts', 'first_audible_ready'],
  ['pacing', 'released'],
  ['transport', 'heard'],
];

/** Work of each stage, as pairs of marks. */
const WORK = [
  ['asr', 'asr_start', 'asr_final'],
  ['llm_prefill', 'reply_requested', 'llm_first_token'],
  ['llm_clause', 'llm_first_token', 'first_piece'],
  ['tts', 'tts_start', 'first_audible_ready'],
];

/** Valid marks of one turn. */
class Marks {
  constructor() {
    this.turn = 0;
    /** @type {Map<string, number>} */
    this.at = new Map();
    /** Tool calls: start, end; null while running. @type {[number, number | null][]} */
    this.tools = [];
    this.numRunning = 0;
  }

  /** Time of the caller's last word; of a typed turn, of the message. */
  get originMs() {
    const written = this.at.has('speech_paused') ? undefined : this.at.get('asked_first');
    return this.at.get('caller_last_voiced') ?? written;
  }

  /**
   * @param {string} name
   * @param {number} atMs
   */
  add(name, atMs) {
    const { at } = this;
    const isLate = at.has('released') && !['heard', 'reply_done', 'interrupted'].includes(name);
    if (isLate) return;
    if (name === 'discarded') {
      this.forget(ATTEMPT);
      this.tools = [];
      this.numRunning = 0;
    } else if (name === 'tool_start' || name === 'tool_done') this.tool(name, atMs);
    else if (name === 'heard') at.set(name, Math.min(atMs, at.get(name) ?? atMs));
    else if (name === 'asr_start') at.delete('asr_final');
    else if (name === 'speech_paused') at.delete('endpoint');
    if (name === 'reply_requested' && !at.has('first_piece')) this.forget(ATTEMPT);
    if (name === 'reply_requested' && !at.has('asked_first')) at.set('asked_first', atMs);
    const isOfAttempt = ATTEMPT.includes(name);
    if (isOfAttempt && name !== 'reply_requested' && !at.has('reply_requested')) return;
    if (!(isOfAttempt && at.has(name))) at.set(name, atMs);
  }

  /**
   * @private
   * @param {string} name
   * @param {number} atMs
   */
  tool(name, atMs) {
    if (name === 'tool_start') {
      if (this.numRunning === 0) this.tools.push([atMs, null]);
      this.numRunning += 1;
    } else if (this.numRunning > 0) {
      this.numRunning -= 1;
      const last = this.tools.at(-1);
      if (this.numRunning === 0 && last) last[1] = atMs;
    }
    // The pass that called the tool is over; the reply to its result is no second attempt.
    if (!this.at.has('first_piece')) this.forget(ATTEMPT);
  }

  /**
   * @private
   * @param {string[]} names
   */
  forget(names) {
    for (const name of names) this.at.delete(name);
  }
}

export class TurnTiming {
  constructor() {
    /** @private Page's clock less the server's, of the newest marks. @type {number[]} */
    this.offsets = [];
    /** @private Of the turn to come. */
    this.pending = new Marks();
    /** @private The turn that has a number, until it is over. @type {Marks | null} */
    this.current = null;
    /** @private The newest number. */
    this.newest = 0;
  }

  /** Reset for a new call. */
  reset() {
    this.offsets = [];
    this.pending = new Marks();
    this.current = null;
    this.newest = 0;
  }

  /**
   * @param {Mark} mark
   * @param {number} arrivedMs in ms of the page's clock
   */
  take({ turn, name, at_ms: atMs, now_ms: nowMs }, arrivedMs) {
    this.offsets.push(arrivedMs - nowMs);
    this.offsets.splice(0, this.offsets.length - MAX_OFFSETS);
    if (name === 'void') this.pending = new Marks();
    else if (turn === null) {
      this.pending.add(name, atMs);
      // The earlier reply is withdrawn: the caller continues the turn that it answered.
      if (name === 'reopened') this.current = null;
    } else this.ofTurn(turn, name, atMs);
  }

  /**
   * @private
   * @param {number} turn
   * @param {string} name
   * @param {number} atMs
   */
  ofTurn(turn, name, atMs) {
    if (turn > this.newest) {
      this.newest = turn;
      this.current = this.pending;
      this.current.turn = turn;
      this.pending = new Marks();
    }
    if (this.current?.turn !== turn || name === 'heard') return; // the page measures that itself
    this.current.add(name, atMs);
    if (name === 'interrupted' && !this.current.at.has('heard')) this.current = null;
  }

  /**
   * Note that the first audible sample of the pending reply was played.
   * @param {number} pageMs when, in ms of the page's clock
   */
  heard(pageMs) {
    if (this.current?.at.has('released')) this.current.add('heard', pageMs - this.offsetMs);
  }

  /**
   * Remove a turn whose account has arrived.
   * @param {number} turn
   */
  over(turn) {
    if (this.current && this.current.turn <= turn) this.current = null;
  }

  /**
   * State of the running turn at this time; null: none.
   * @param {number} pageMs
   * @returns {LiveTurn | null}
   */
  at(pageMs) {
    const nowMs = pageMs - this.offsetMs;
    for (const marks of [this.current, this.pending]) {
      const shown = marks && liveTurn(marks, nowMs);
      if (shown) return shown;
    }
    return null;
  }

  /** @private */
  get offsetMs() {
    return Math.min(...this.offsets);
  }
}

/**
 * @param {Marks} marks
 * @param {number} nowMs
 * @returns {LiveTurn | null}
 */
function liveTurn(marks, nowMs) {
  const { originMs } = marks;
  if (originMs === undefined || marks.at.has('greeting')) return null;
  const heardMs = marks.at.get('heard');
  const endMs = heardMs ?? nowMs;
  const elapsedMs = endMs - originMs;
  const isOver = heardMs === undefined && elapsedMs > MAX_TURN_MS;
  if (isOver || elapsedMs < 0) return null;
  const waited = waitedFor(marks, originMs, elapsedMs);
  return {
    elapsedMs,
    waited,
    ahead: workAhead(marks, originMs, elapsedMs),
    stage: waited.at(-1)?.stage ?? 'capture',
    heard: heardMs !== undefined,
  };
}

/**
 * @param {Marks} marks
 * @param {number} originMs
 * @param {number} elapsedMs
 * @returns {Stretch[]}
 */
function waitedFor(marks, originMs, elapsedMs) {
  /** @type {Stretch[]} */
  const waited = [];
  let fromMs = 0;
  for (const [stage, endMs] of boundaries(marks)) {
    const toMs = endMs === null ? elapsedMs : Math.min(elapsedMs, endMs - originMs);
    if (toMs > fromMs || endMs === null) waited.push({ stage, fromMs, toMs });
    fromMs = Math.max(fromMs, toMs);
    if (endMs === null) break;
  }
  return waited;
}

/**
 * Stages so far with their ends; the active one has none.
 * @param {Marks} marks
 * @returns {[string, number | null][]}
 */
function boundaries({ at, tools, turn, originMs }) {
  /** @type {[string, number | null][]} */
  const found = [];
  const isSpoken = at.get('caller_last_voiced') === originMs;
  const first = isSpoken ? 0 : BOUNDARIES.findIndex(([stage]) => stage === 'llm_prefill');
  const lastKnown = BOUNDARIES.findLastIndex(([, mark]) => at.has(mark));
  for (const [index, [stage, mark]] of BOUNDARIES.entries()) {
    if (index < first) continue;
    if (stage === 'llm_prefill') {
      for (const [fromMs, toMs] of tools) found.push([stage, fromMs], ['tool', toMs]);
      if (tools.at(-1)?.[1] === null) break;
    }
    const endMs = stage === 'endpoint' ? patientMs(at) : at.get(mark);
    // Speculative work does not tell whether the caller has finished.
    const isOpen = endMs === undefined && (stage === 'endpoint' ? !turn : index > lastKnown);
    if (endMs !== undefined) found.push([stage, endMs]);
    else if (isOpen) {
      found.push([stage, null]);
      break;
    }
  }
  return found;
}

/**
 * Time until which end-of-turn detection was waited for.
 * @param {Map<string, number>} at
 * @returns {number | undefined}
 */
function patientMs(at) {
  const [startMs, finalMs, endpointMs] = ['asr_start', 'asr_final', 'endpoint'].map((name) =>
    at.get(name),
  );
  if (startMs === undefined || finalMs === undefined || endpointMs === undefined) return endpointMs;
  const isAtOnce = finalMs <= endpointMs && endpointMs <= finalMs + AT_ONCE_MS;
  return isAtOnce ? startMs : endpointMs;
}

/**
 * @param {Marks} marks
 * @param {number} originMs
 * @param {number} elapsedMs
 * @returns {Stretch[]}
 */
function workAhead({ at }, originMs, elapsedMs) {
  const endpointMs = (patientMs(at) ?? Infinity) - originMs;
  return WORK.map(([stage, start, end]) => ({
    stage,
    fromMs: Math.max(0, (at.get(start) ?? Infinity) - originMs),
    toMs: Math.min(elapsedMs, endpointMs, (at.get(end) ?? Infinity) - originMs),
  })).filter(({ fromMs, toMs }) => fromMs < toMs);
}

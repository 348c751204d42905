/**
 * A turn while it happens: where the caller's wait went so far, and who is at work now.
 *
 * The server tells each mark as soon as it knows it (`halfsec.mark`), at first of a turn that has no
 * number, because nobody knows yet that the caller has finished. What happens again (another pause,
 * another attempt at the reply) takes the place of what was before, as in the server's own account.
 *
 * Times are the server's, after the session's start. Each mark says what time it is there: the least
 * difference to the page's clock places all of them, but for the way from there to here. So what is
 * shown may be short by the way there and back, until the account takes its place. Pure.
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
 * @property {Stretch[]} ahead work that is hidden behind the wait for the end of the turn
 * @property {string} stage the one at work now, or the last
 * @property {boolean} heard the agent's first sound was played
 *
 * @typedef {{turn: number | null, name: string, at_ms: number, now_ms: number}} Mark
 */

/** Marks by which the two clocks are compared: some turns' worth, for clocks drift apart. */
const MAX_OFFSETS = 64;

/** Longer than any turn that is still worth watching. */
const MAX_TURN_MS = 30_000;

/**
 * An end of the turn that follows the words so soon was decided by their coming: the silence had been
 * long enough before, and it was the recognizer that was waited for.
 */
const AT_ONCE_MS = 2;

/** Of an attempt at the reply: another one voids them. */
const ATTEMPT = [
  'reply_requested',
  'llm_first_token',
  'first_piece',
  'tts_start',
  'tts_first_chunk',
  'first_audible_ready',
];

/** The stages that follow each other, and the mark at which each ends. */
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

/** The work of each stage, by its marks. */
const WORK = [
  ['asr', 'asr_start', 'asr_final'],
  ['llm_prefill', 'reply_requested', 'llm_first_token'],
  ['llm_clause', 'llm_first_token', 'first_piece'],
  ['tts', 'tts_start', 'first_audible_ready'],
];

/** The marks of one turn, those that count. */
class Marks {
  constructor() {
    this.turn = 0;
    /** @type {Map<string, number>} */
    this.at = new Map();
    /** Tools: from, to; the last one is still running where it has no end. @type {[number, number | null][]} */
    this.tools = [];
    this.numRunning = 0;
  }

  /** The caller's last word; of a written turn, the message. */
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
    // The pass that called it is over; the reply to what it gives is no second attempt.
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

  /** Forget all: another call. */
  reset() {
    this.offsets = [];
    this.pending = new Marks();
    this.current = null;
    this.newest = 0;
  }

  /**
   * @param {Mark} mark
   * @param {number} arrivedMs by the page's clock
   */
  take({ turn, name, at_ms: atMs, now_ms: nowMs }, arrivedMs) {
    this.offsets.push(arrivedMs - nowMs);
    this.offsets.splice(0, this.offsets.length - MAX_OFFSETS);
    if (name === 'void') this.pending = new Marks();
    else if (turn === null) {
      this.pending.add(name, atMs);
      // The reply before is taken back: the caller goes on with what it was to answer.
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
    if (this.current?.turn !== turn || name === 'heard') return; // the page knows that better
    this.current.add(name, atMs);
    if (name === 'interrupted' && !this.current.at.has('heard')) this.current = null;
  }

  /**
   * The first sound of the reply that is due was played.
   * @param {number} pageMs when, by the page's clock
   */
  heard(pageMs) {
    if (this.current?.at.has('released')) this.current.add('heard', pageMs - this.offsetMs);
  }

  /**
   * This turn is over, and its account there.
   * @param {number} turn
   */
  over(turn) {
    if (this.current && this.current.turn <= turn) this.current = null;
  }

  /**
   * What is to be shown at this time; null: nothing.
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
 * The stages so far with their ends, the last of them without one: it is at work.
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
    // What is prepared in case the caller has finished says nothing about whether he has.
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
 * Until when the end of the turn was waited for.
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

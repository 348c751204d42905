/**
 * Log of a call for download: its audio, its transcript, and the ids of its sessions.
 *
 * It covers one call and is kept until the next one begins. All times are on one axis that begins
 * with the call and follows the audio context's clock while there is one, so that transcript and
 * audio are aligned. Nothing of it leaves the page.
 */

import { CallRecording } from '../audio/call-recording.js';
import { toInt16, WIRE_RATE_HZ } from '../audio/pcm.js';
import { Resampler } from '../audio/resampler.js';

/**
 * @typedef {import('./call.js').Call} Call
 * @typedef {import('./conversation.js').Message} Message
 * @typedef {import('./event-buffer.js').Moment} Moment
 * @typedef {import('../ui/tool-calls.js').ToolEvent} ToolEvent
 *
 * @typedef {object} Line
 * @property {number} atMs start, on the call's axis
 * @property {Message | null} message in its current state
 * @property {string} note in place of a message: about the connection, or a tool
 * @property {number | null} waitMs from the caller's last word to this reply
 */

/** Half an hour of quick talk; beyond it the oldest lines are dropped. */
const MAX_LINES = 1000;

/** Maximum number of sessions of one call: each new connection without resumption is a session. */
const MAX_SESSIONS = 8;

/** Entries of one call. */
export class CallEntries {
  /** @param {number} fromS time of the audio context, if there is one */
  constructor(fromS) {
    this.beganAt = new Date();
    this.recording = new CallRecording();
    /** @type {Line[]} */
    this.lines = [];
    /** True when old lines were dropped. */
    this.hasForgotten = false;
    /** @type {string[]} */
    this.sessions = [];
    /** @private */
    this.beganMs = performance.now();
    /** @private */
    this.fromS = fromS;
    /** @private The audio context in use; none yet. */
    this.clockNumber = 0;
    /** @private What to add to its time. @type {number | null} */
    this.anchorMs = null;
  }

  /** @param {string} id */
  addSession(id) {
    if (this.sessions.includes(id)) return;
    this.sessions.push(id);
    this.sessions.splice(0, this.sessions.length - MAX_SESSIONS);
  }

  /**
   * @param {Partial<Line>} line
   * @param {number | null} contextS the audio context's time; null where there is none
   * @returns {Line}
   */
  addLine(line, contextS) {
    const atMs = contextS === null ? performance.now() - this.beganMs : this.axisMs(contextS);
    const whole = { atMs, message: null, note: '', waitMs: null, ...line };
    this.lines.push(whole);
    if (this.lines.length > MAX_LINES) {
      this.lines.shift();
      this.hasForgotten = true;
    }
    return whole;
  }

  /** @param {number} number of the audio context whose clock is used from now on */
  useClock(number) {
    if (number === this.clockNumber) return;
    if (this.clockNumber > 0) this.fromS = 0;
    this.clockNumber = number;
    this.anchorMs = null;
  }

  /**
   * Position of a context's time on the call's axis. A busy page receives past events after newer
   * ones, so times may go back; they are never before the call.
   * @param {number} contextS
   * @returns {number} on the axis of the call
   */
  axisMs(contextS) {
    const sinceMs = performance.now() - this.beganMs;
    this.anchorMs ??= Math.max(sinceMs - 1000 * contextS, -1000 * this.fromS);
    return Math.max(0, this.anchorMs + 1000 * contextS);
  }
}

/** The log of a call, written while it happens. */
export class CallLog {
  /**
   * @param {Call} call
   * @param {EventTarget} events as in `showCall`
   */
  constructor(call, events) {
    /** Entries of the current call, or of the last one. */
    this.entries = new CallEntries(0); // buffered events arrive from the first one
    /** @private */
    this.isOver = call.phase === 'off';
    /** @private @type {Map<string, Line>} */
    this.byItem = new Map();
    /** @private */
    this.voice = { rateHz: 0, resampler: new Resampler(1, 1), nextFrame: -1, atMs: 0 };
    if (call.client.sessionId) this.entries.addSession(call.client.sessionId);
    this.listen(call, events);
  }

  /**
   * @private
   * @param {Call} call
   * @param {EventTarget} events
   */
  listen(call, events) {
    on(call, 'phase', (phase) => this.onPhase(phase, call.devices.clockS ?? 0));
    on(call.client, 'event', ({ type, session }) => {
      if (type === 'session.created') this.entries.addSession(session.id);
    });
    /** @type {(type: string, take: (detail: any, atS: number | null) => void) => void} */
    const onMoment = (type, take) => {
      events.addEventListener(type, (event) => {
        const { detail, atS, clockNumber } = /** @type {CustomEvent & Moment} */ (event);
        this.entries.useClock(clockNumber);
        take(detail, atS);
      });
    };
    onMoment('batch', ({ pcm, atS }) => this.addCaller(pcm, atS));
    onMoment('output', ({ samples, frame, rateHz }) => this.addAgent(samples, frame, rateHz));
    onMoment('message', (message, atS) => this.addMessage(message, atS));
    onMoment('removed', (itemId) => this.drop(itemId));
    onMoment('sent', (itemId) => this.drop(itemId));
    onMoment('turn', ({ itemId, turn }) => {
      const line = this.byItem.get(itemId);
      if (line && !turn.cut_in) line.waitMs = turn.e2e_ear_ms ?? turn.e2e_server_ms;
    });
    onMoment('tool', (tool, atS) => this.addTool(tool, atS));
    onMoment('handoff', ({ from, to }, atS) =>
      this.addNote(`The agent ${from} handed the call over to ${to}.`, atS),
    );
    onMoment('resumed', (_, atS) =>
      this.addNote('The connection broke; the call goes on.', atS),
    );
    onMoment('renewed', (_, atS) => {
      for (const [itemId, { message }] of this.byItem)
        if (message?.state !== 'unsent') this.byItem.delete(itemId);
      this.addNote('New connection: the agent starts afresh.', atS);
    });
  }

  /**
   * @private
   * @param {import('./call.js').Phase} phase
   * @param {number} clockS
   */
  onPhase(phase, clockS) {
    if (phase !== 'off' && this.isOver) {
      this.entries = new CallEntries(clockS);
      this.byItem.clear();
    }
    this.isOver = phase === 'off';
  }

  /**
   * @private
   * @param {Int16Array} pcm
   * @param {number} endS when its last sample was captured, by the context's clock
   */
  addCaller(pcm, endS) {
    if (this.isOver) return;
    const { recording } = this.entries;
    recording.write('caller', pcm, this.entries.axisMs(endS - pcm.length / WIRE_RATE_HZ));
  }

  /**
   * @private
   * @param {Float32Array} samples as played
   * @param {number} frame of the first of them
   * @param {number} rateHz
   */
  addAgent(samples, frame, rateHz) {
    if (this.isOver) return;
    const { voice } = this;
    if (voice.rateHz !== rateHz) {
      voice.resampler = new Resampler(rateHz, WIRE_RATE_HZ);
      voice.rateHz = rateHz;
      voice.nextFrame = -1;
    } else if (frame !== voice.nextFrame) this.writeAgent(voice.resampler.flush());
    if (frame !== voice.nextFrame) voice.atMs = this.entries.axisMs(frame / rateHz);
    voice.nextFrame = frame + samples.length;
    this.writeAgent(voice.resampler.process(samples));
  }

  /**
   * @private
   * @param {Float32Array} samples
   */
  writeAgent(samples) {
    this.entries.recording.write('agent', toInt16(samples), this.voice.atMs);
    this.voice.atMs += (1000 * samples.length) / WIRE_RATE_HZ;
  }

  /**
   * @private
   * @param {Message} message
   * @param {number | null} atS
   */
  addMessage(message, atS) {
    const known = this.byItem.get(message.itemId);
    if (known) known.message = message;
    else if (!this.isOver) this.byItem.set(message.itemId, this.entries.addLine({ message }, atS));
    for (const old of [...this.byItem.keys()].slice(0, -MAX_LINES)) this.byItem.delete(old);
  }

  /**
   * @private
   * @param {string} itemId
   */
  drop(itemId) {
    const line = this.byItem.get(itemId);
    this.byItem.delete(itemId);
    this.entries.lines = this.entries.lines.filter((each) => each !== line);
  }

  /**
   * @private
   * @param {ToolEvent} tool
   * @param {number | null} atS
   */
  addTool({ name, state, ms }, atS) {
    if (state === 'started' || state === 'background') return;
    this.addNote(`Tool ${name}: ${state} after ${ms} ms.`, atS);
  }

  /**
   * @private
   * @param {string} note
   * @param {number | null} atS
   */
  addNote(note, atS) {
    if (!this.isOver) this.entries.addLine({ note }, atS);
  }
}

/**
 * @param {EventTarget} target
 * @param {string} type
 * @param {(detail: any) => void} take
 */
function on(target, type, take) {
  target.addEventListener(type, (event) => take(/** @type {CustomEvent} */ (event).detail));
}

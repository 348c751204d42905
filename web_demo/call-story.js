/**
 * What there is to download of a call: its sound, its words, and the names of its sessions.
 *
 * One call, from the first sign of it to the next one: what is said by then stays to be downloaded
 * when it is over. All times are on one axis that begins with the call and follows the audio
 * context's clock while there is one, so that words and sound agree. Nothing of it leaves the page.
 */

import { CallRecording } from './call-recording.js';
import { toInt16, WIRE_RATE_HZ } from './pcm.js';
import { Resampler } from './resampler.js';

/**
 * @typedef {import('./call.js').Call} Call
 * @typedef {import('./conversation.js').Message} Message
 * @typedef {import('./tool-lines.js').ToolEvent} ToolEvent
 *
 * @typedef {{pcm: Int16Array, atS: number}} Batch captured sound, and the context's time at its end
 *
 * @typedef {object} Line
 * @property {number} atMs when it began
 * @property {Message | null} message as it is now
 * @property {string} note in place of a message: about the connection, or a tool
 * @property {number | null} waitMs from the caller's last word to this reply
 */

/** Half an hour of quick talk; then the oldest go. */
const MAX_LINES = 1000;

/** Sessions of one call: each is a connection after which the agent began afresh. */
const MAX_SESSIONS = 8;

/** What is kept of one call. */
export class Story {
  constructor() {
    this.beganAt = new Date();
    this.recording = new CallRecording();
    /** @type {Line[]} */
    this.lines = [];
    /** Old lines had to go. */
    this.hasForgotten = false;
    /** @type {string[]} */
    this.sessions = [];
    /** @private */
    this.beganMs = performance.now();
    /** @private Of the audio context in use: what to add to its time. @type {number | null} */
    this.anchorMs = null;
    /** @private */
    this.lastS = 0;
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

  /**
   * A context's clock stands still while the machine sleeps, and a new one begins at zero.
   * @param {number} contextS
   * @returns {number} on the axis of the call
   */
  axisMs(contextS) {
    if (this.anchorMs === null || contextS < this.lastS - 1) {
      this.anchorMs = performance.now() - this.beganMs - 1000 * contextS;
      this.lastS = contextS;
    }
    this.lastS = Math.max(this.lastS, contextS);
    return Math.max(0, this.anchorMs + 1000 * contextS);
  }
}

/** Writes the story of a call, as it happens. */
export class CallStory {
  /**
   * @param {Call} call
   * @param {Batch[]} early captured in it so far
   */
  constructor(call, early) {
    /** @private */
    this.call = call;
    /** The one in progress, or the last one. */
    this.story = new Story();
    /** @private */
    this.isOver = call.phase === 'off';
    /** @private @type {Map<string, Line>} */
    this.byItem = new Map();
    /** @private */
    this.voice = { rateHz: 0, resampler: new Resampler(1, 1), nextFrame: -1, atMs: 0 };
    if (call.client.sessionId) this.story.addSession(call.client.sessionId);
    for (const { pcm, atS } of early) this.addCaller(pcm, atS);
    this.listen();
  }

  /** @private */
  listen() {
    const { call } = this;
    const { client, conversation, devices } = call;
    on(call, 'phase', (phase) => this.onPhase(phase));
    on(client, 'event', ({ type, session }) => {
      if (type === 'session.created') this.story.addSession(session.id);
    });
    on(devices, 'batch', ({ pcm, atS }) => this.addCaller(pcm, atS));
    on(devices, 'tape', ({ samples, frame, rateHz }) => this.addAgent(samples, frame, rateHz));
    on(conversation, 'message', (message) => this.addMessage(message));
    on(conversation, 'removed', (itemId) => this.drop(itemId));
    on(conversation, 'sent', (itemId) => this.drop(itemId));
    on(conversation, 'turn', ({ itemId, turn }) => {
      const line = this.byItem.get(itemId);
      if (line && !turn.cut_in) line.waitMs = turn.e2e_ear_ms ?? turn.e2e_server_ms;
    });
    on(conversation, 'tool', (tool) => this.addTool(tool));
    on(call, 'resumed', () => this.addNote('The connection broke; the call goes on.'));
    on(call, 'renewed', () => {
      for (const [itemId, { message }] of this.byItem)
        if (message?.state !== 'unsent') this.byItem.delete(itemId);
      this.addNote('New connection: the agent starts afresh.');
    });
  }

  /**
   * @private
   * @param {import('./call.js').Phase} phase
   */
  onPhase(phase) {
    if (phase !== 'off' && this.isOver) {
      this.story = new Story();
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
    const { recording } = this.story;
    recording.write('caller', pcm, this.story.axisMs(endS - pcm.length / WIRE_RATE_HZ));
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
    if (frame !== voice.nextFrame) voice.atMs = this.story.axisMs(frame / rateHz);
    voice.nextFrame = frame + samples.length;
    this.writeAgent(voice.resampler.process(samples));
  }

  /**
   * @private
   * @param {Float32Array} samples
   */
  writeAgent(samples) {
    this.story.recording.write('agent', toInt16(samples), this.voice.atMs);
    this.voice.atMs += (1000 * samples.length) / WIRE_RATE_HZ;
  }

  /**
   * @private
   * @param {Message} message
   */
  addMessage(message) {
    const known = this.byItem.get(message.itemId);
    if (known) known.message = message;
    else if (!this.isOver) this.byItem.set(message.itemId, this.addLine({ message }));
    for (const old of [...this.byItem.keys()].slice(0, -MAX_LINES)) this.byItem.delete(old);
  }

  /**
   * @private
   * @param {string} itemId
   */
  drop(itemId) {
    const line = this.byItem.get(itemId);
    this.byItem.delete(itemId);
    this.story.lines = this.story.lines.filter((each) => each !== line);
  }

  /**
   * @private
   * @param {ToolEvent} tool
   */
  addTool({ name, state, ms }) {
    if (state !== 'started') this.addNote(`Tool ${name}: ${state} after ${ms} ms.`);
  }

  /**
   * @private
   * @param {string} note
   */
  addNote(note) {
    if (!this.isOver) this.addLine({ note });
  }

  /**
   * @private
   * @param {Partial<Line>} line
   */
  addLine(line) {
    return this.story.addLine(line, this.call.devices.clockS);
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

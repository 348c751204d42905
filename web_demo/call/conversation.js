/**
 * Messages of a conversation, built from server events and playback reports.
 *
 * A caller's message becomes final word by word; an agent's message has the part that was played,
 * and the position of the cut if it was interrupted. Events: `message` (detail: Message) whenever
 * one changes, `removed` (detail: item id) for speech that was noise, `turn` (detail: {turn,
 * itemId}) with the latency of a turn, `tool` (detail: the event) for a tool that the server runs,
 * `handoff` (detail: the event) when another agent takes over, `sent` (detail: item id) for a typed
 * message that had to wait.
 */

import { HeardText } from './heard-text.js';

/**
 * @typedef {object} Message
 * @property {string} itemId
 * @property {'caller' | 'agent'} role
 * @property {string} text
 * @property {number} sureChars caller: stable characters; agent: played characters
 * @property {'live' | 'done' | 'cut' | 'failed' | 'unsent'} state
 *
 * @typedef {object} Reply
 * @property {HeardText} words
 * @property {number} heardMs
 * @property {'live' | 'done' | 'cut'} state
 * @property {boolean} measured the latency of its turn was received
 * @property {boolean} isSpoken
 * @property {number | null} heardChars of a cut reply, where the server has said it
 *
 * @typedef {import('./realtime-client.js').RealtimeEvent} RealtimeEvent
 * @typedef {import('../ui/turn-bar.js').Turn} Turn
 */

/** Replies kept for late events; older ones are no longer updated. */
const MAX_REPLIES = 16;

export class Conversation extends EventTarget {
  constructor() {
    super();
    /** @private @type {Map<string, Reply>} */
    this.replies = new Map();
    /** @private The caller's sentence that has no words yet. */
    this.wordless = '';
    /** @private Words of the sentence in the air. @type {Map<string, string>} */
    this.partials = new Map();
    /** @private What the caller said, of which all is known. @type {Set<string>} */
    this.said = new Set();
    /** @private Names of what waits to be sent. @type {string[]} */
    this.waiting = [];
    /** Without a loudspeaker a reply counts as heard when its text is shown. */
    this.silent = false;
    /** Spoken replies are played by the server (WebRTC): it says when one was heard to its end. */
    this.isRemote = false;
  }

  /** @param {RealtimeEvent} event */
  handle(event) {
    const handler = HANDLERS[event.type];
    if (handler) handler(this, event);
  }

  /**
   * Audio of a reply has arrived.
   * @param {string} itemId
   * @param {number} ms
   */
  addAudio(itemId, ms) {
    this.replies.get(itemId)?.words.addAudio(ms);
  }

  /**
   * @param {string} itemId
   * @param {number} playedMs
   * @param {boolean} finished
   */
  played(itemId, playedMs, finished) {
    const reply = this.replies.get(itemId);
    if (!reply || reply.state === 'cut') return;
    if (finished) reply.state = 'done';
    reply.heardMs = playedMs;
    this.showReply(itemId, reply);
  }

  /**
   * A reply was interrupted.
   * @param {string} itemId
   * @param {number} [playedMs] when it is known more exactly than from the last report
   */
  cut(itemId, playedMs = 0) {
    const reply = this.replies.get(itemId);
    if (!reply || reply.state === 'done') return;
    reply.state = 'cut';
    reply.heardMs = Math.max(playedMs, reply.heardMs);
    this.showReply(itemId, reply);
  }

  /**
   * @param {string} itemId
   * @param {string} text
   * @param {number} sureChars
   * @param {'live' | 'done' | 'failed'} state
   */
  showCaller(itemId, text, sureChars, state) {
    if (text && this.wordless === itemId) this.wordless = '';
    if (state === 'live') this.partials.set(itemId, text);
    else this.partials.delete(itemId);
    this.emit('message', { itemId, role: 'caller', text, sureChars, state });
  }

  /**
   * Show typed messages that wait for a connection.
   * @param {string[]} texts all of them
   */
  waits(texts) {
    for (const itemId of this.waiting.slice(texts.length)) this.emit('sent', itemId);
    this.waiting = texts.map((_, index) => `unsent_${index}`);
    for (const [index, text] of texts.entries())
      this.emit('message', {
        ...{ itemId: this.waiting[index], role: 'caller', text, sureChars: 0, state: 'unsent' },
      });
  }

  /** @param {string} itemId */
  callerStarted(itemId) {
    this.dropWordless();
    this.wordless = itemId;
    this.showCaller(itemId, '', 0, 'live');
  }

  /**
   * @param {string} itemId
   * @param {string} text
   */
  callerFinished(itemId, text) {
    this.said.add(itemId);
    if (text.trim()) {
      this.showCaller(itemId, text.trim(), text.length, 'done');
      return;
    }
    this.partials.delete(itemId);
    if (this.wordless === itemId) this.wordless = '';
    this.emit('removed', itemId);
  }

  /**
   * Append to a transcript that only grows.
   * @param {string} itemId
   * @param {string} delta
   */
  callerDelta(itemId, delta) {
    const text = (this.partials.get(itemId) ?? '') + delta;
    this.showCaller(itemId, text, text.length, 'live');
  }

  /**
   * @param {string} itemId
   * @param {string} delta
   * @param {boolean} [isSpoken]
   */
  agentText(itemId, delta, isSpoken = false) {
    const reply = this.replyFor(itemId);
    reply.isSpoken ||= isSpoken;
    reply.words.addText(delta);
    this.showReply(itemId, reply);
  }

  /**
   * @param {string} itemId
   * @returns {Reply}
   */
  replyFor(itemId) {
    const known = this.replies.get(itemId);
    if (known) return known;
    const reply = /** @type {Reply} */ ({
      words: new HeardText(),
      heardMs: 0,
      state: 'live',
      measured: false,
      isSpoken: false,
      heardChars: null,
    });
    this.replies.set(itemId, reply);
    for (const old of [...this.replies.keys()].slice(0, -MAX_REPLIES)) this.replies.delete(old);
    return reply;
  }

  /** @param {RealtimeEvent} event `response.done` */
  responseDone(event) {
    for (const item of event.response.output ?? []) {
      const reply = this.replies.get(item.id);
      const isHeardLater = this.isRemote && !this.silent && reply?.isSpoken;
      if (event.response.status === 'completed' && !isHeardLater) reply?.words.complete();
      if (!reply || reply.state !== 'live') continue;
      if (event.response.status === 'cancelled') this.cut(item.id);
      else if (isHeardLater) continue;
      else if (this.silent || reply.words.audioMs === 0) this.played(item.id, 0, true);
    }
  }

  /**
   * Show what the server's history has of a reply that was interrupted.
   * @param {string} itemId
   * @param {string} heardText its beginning
   */
  heardExactly(itemId, heardText) {
    const reply = this.replies.get(itemId);
    if (reply?.state !== 'cut' || !reply.words.text.startsWith(heardText)) return;
    reply.heardChars = heardText.length;
    this.showReply(itemId, reply);
  }

  /** @param {Turn} turn */
  turnMeasured(turn) {
    const isReopened = turn.outcome === 'reopened';
    if (isReopened && !turn.opener) return; // nothing of its reply was heard or shown
    const waiting = [...this.replies].filter(([, reply]) => !reply.measured);
    const match =
      waiting.find(([itemId]) => itemId === turn.item_id) ??
      waiting.findLast(
        ([, { words }]) => turn.agent_text && words.text.startsWith(turn.agent_text),
      ) ??
      waiting[0];
    if (!match) return;
    match[1].measured = true;
    if (isReopened) return; // nothing but an opener was heard, so the answer has no time
    this.emit('turn', { turn, itemId: match[0] });
  }

  /**
   * Update messages after a resumed connection: what the caller said is now known, or was dropped.
   * @param {any[]} items of the server's conversation
   */
  resumed(items) {
    this.dropWordless();
    const said = new Map(items.map((item) => [item.id, item.content?.[0]?.transcript]));
    for (const itemId of [...this.partials.keys()]) {
      if (!said.has(itemId)) this.callerFinished(itemId, '');
    }
    for (const item of items) {
      const words = said.get(item.id);
      const isNews = item.role === 'user' && !this.said.has(item.id);
      if (isNews && words) this.callerFinished(item.id, words);
    }
    for (const itemId of this.replies.keys()) this.cut(itemId);
  }

  /** Close open messages: the server lost the conversation. */
  reset() {
    this.dropWordless();
    for (const itemId of this.replies.keys()) this.cut(itemId);
    for (const [itemId, text] of this.partials)
      this.showCaller(itemId, text, text.length, 'failed');
    this.replies.clear();
    this.said.clear();
  }

  /** @private A sound that never became words. */
  dropWordless() {
    if (this.wordless) this.emit('removed', this.wordless);
    this.partials.delete(this.wordless);
    this.wordless = '';
  }

  /**
   * @private
   * @param {string} itemId
   * @param {Reply} reply
   */
  showReply(itemId, { words, state, heardMs, heardChars }) {
    const { text } = words;
    if (!text) return;
    if (state === 'done') words.complete();
    const allHeard = state === 'done' || (this.silent && state === 'live');
    const sureChars = allHeard ? text.length : (heardChars ?? words.charsAt(heardMs));
    this.emit('message', { itemId, role: 'agent', text, sureChars, state });
  }

  /**
   * @param {string} type
   * @param {unknown} detail
   */
  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

const TRANSCRIPTION = 'conversation.item.input_audio_transcription';

/** @type {Record<string, (conversation: Conversation, event: RealtimeEvent) => void>} */
const HANDLERS = {
  'input_audio_buffer.speech_started': (c, event) => c.callerStarted(event.item_id),
  'halfsec.partial': (c, event) =>
    c.showCaller(event.item_id, event.text, event.stable_chars, 'live'),
  [`${TRANSCRIPTION}.delta`]: (c, event) => c.callerDelta(event.item_id, event.delta),
  [`${TRANSCRIPTION}.completed`]: (c, event) => c.callerFinished(event.item_id, event.transcript),
  [`${TRANSCRIPTION}.failed`]: (c, event) => c.showCaller(event.item_id, '', 0, 'failed'),
  'conversation.item.added': (c, { item }) => {
    const written = item.role === 'user' && item.content?.find(isWritten);
    if (written) c.showCaller(item.id, written.text, written.text.length, 'done');
  },
  'response.output_item.added': (c, { item }) => {
    if (item.type === 'message') c.replyFor(item.id);
  },
  'conversation.item.retrieved': (c, { item }) => {
    const { transcript } = item.content?.[0] ?? {};
    if (item.role === 'assistant' && transcript !== undefined) c.heardExactly(item.id, transcript);
  },
  'response.output_audio_transcript.delta': (c, event) =>
    c.agentText(event.item_id, event.delta, true),
  'response.output_text.delta': (c, event) => c.agentText(event.item_id, event.delta),
  'response.done': (c, event) => c.responseDone(event),
  'halfsec.resumed': (c, event) => c.resumed(event.items),
  'halfsec.turn': (c, event) => c.turnMeasured(event.turn),
  'halfsec.tool': (c, event) => c.emit('tool', event),
  'halfsec.handoff': (c, event) => c.emit('handoff', event),
};

/** @param {{type: string}} part */
function isWritten(part) {
  return part.type === 'input_text';
}

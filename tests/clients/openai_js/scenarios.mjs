// The npm package `openai`: `node scenarios.mjs ws|native [NAME ...]` for its two socket classes.
// Both force wss, so the service speaks TLS and NODE_EXTRA_CA_CERTS names its certificate.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { OpenAIRealtimeWebSocket as BetaWebSocket } from 'openai/beta/realtime/websocket';
import { OpenAIRealtimeWS as BetaWS } from 'openai/beta/realtime/ws';
import { OpenAIRealtimeWebSocket } from 'openai/realtime/websocket';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import {
  BYTES_PER_S, CLOSING_OF_A_CUT, Inbox, READER, SPOKEN_TURN, STORY, checkChain, checkToolCall, cut,
  http, loudest, main, outline, overlap, pieces, speech, transcripts, weather,
} from './scene.mjs';

const [kind, ...names] = process.argv.slice(2);
const Socket = { ws: OpenAIRealtimeWS, native: OpenAIRealtimeWebSocket }[kind];
const BetaSocket = { ws: BetaWS, native: BetaWebSocket }[kind];

class Talk {
  inbox = new Inbox();
  failures = [];

  constructor(model = 'gpt-realtime-2.1', options = {}) {
    const client = new OpenAI({ baseURL: `${http}/v1`, apiKey: 'sk-test' });
    this.socket = new Socket({ model, ...options }, client);
    this.socket.on('event', (event) => this.inbox.put(event));
    this.socket.on('error', (error) => this.failures.push(error));
  }

  // A scenario on a connection of its own.
  static async with(story, ...options) {
    const talk = new Talk(...options);
    try {
      await talk.until('session.created');
      await story(talk);
      assert.deepEqual(talk.failures, []);
      checkChain(talk.inbox.events);
    } finally {
      talk.socket.close();
    }
  }

  until(type, where) {
    return this.inbox.until(type, where);
  }

  send(type, fields = {}) {
    this.socket.send({ type, ...fields });
  }

  say(pcm) {
    for (const piece of pieces(pcm)) {
      this.send('input_audio_buffer.append', { audio: piece.toString('base64') });
    }
  }

  type(text) {
    const content = [{ type: 'input_text', text }];
    this.send('conversation.item.create', { item: { type: 'message', role: 'user', content } });
  }

  async response() {
    const { response } = await this.until('response.done');
    await this.until('rate_limits.updated');
    return response;
  }

  async hearSome(numDeltas) {
    let delta;
    for (let n = 0; n < numDeltas; n++) delta = await this.until('response.output_audio.delta');
    return delta;
  }

  async proveAlive() {
    this.type('Say hello.');
    const response = { output_modalities: ['text'], max_output_tokens: 4 };
    this.send('response.create', { response });
    assert.ok(['completed', 'incomplete'].includes((await this.response()).status));
  }

  // The error that the server sent, as the SDK tells it.
  takeFailure() {
    assert.equal(this.failures.length, 1);
    return this.failures.pop().error;
  }
}

const scenarios = {
  spoken_turn: () =>
    Talk.with(async (talk) => {
      const said = 'vm-nobodyavail';
      talk.say(speech(said));
      const response = await talk.response();
      const { events } = talk.inbox;
      const type = 'conversation.item.input_audio_transcription.completed';
      const heard = events.find((event) => event.type === type) ?? (await talk.until(type));
      assert.deepEqual(outline(events.slice(1)), SPOKEN_TURN);
      assert.ok(overlap(transcripts[said], heard.transcript) >= 0.8, heard.transcript);
      assert.equal(response.status, 'completed');
      const deltas = events.filter((event) => event.type === 'response.output_audio.delta');
      const spoken = Buffer.concat(deltas.map(({ delta }) => Buffer.from(delta, 'base64')));
      assert.ok(spoken.length > BYTES_PER_S / 2);
      assert.ok(loudest(spoken) > 1000);
    }),

  barge_in: () =>
    Talk.with(async (talk) => {
      const heard = await talk.hearSome(15);
      talk.say(speech('all-circuits-busy-now', 0));
      await talk.until('input_audio_buffer.speech_started');
      const { events } = talk.inbox;
      const number = 1 + events.findIndex(({ type }) => type.endsWith('.speech_started'));
      const response = await talk.response();
      const end = events.findIndex(({ type }) => type === 'rate_limits.updated') + 1;
      assert.deepEqual(outline(events.slice(number, end)), CLOSING_OF_A_CUT);
      assert.deepEqual([response.id, response.status], [heard.response_id, 'cancelled']);
      assert.equal(response.status_details.reason, 'turn_detected');
      const place = { item_id: heard.item_id, content_index: 0, audio_end_ms: 500 };
      talk.send('conversation.item.truncate', place);
      await talk.until('conversation.item.truncated');
      talk.say(Buffer.alloc(2 * BYTES_PER_S));
      const again = await talk.hearSome(1);
      assert.notEqual(again.response_id, heard.response_id);
      const late = events.slice(end).filter((event) => event.response_id === heard.response_id);
      assert.deepEqual(late, []);
    }, READER),

  tool_call: () =>
    Talk.with(async (talk) => {
      const tools = [{ type: 'function', name: 'get_weather', parameters: weather }];
      const session = { type: 'realtime', tools, tool_choice: 'required' };
      talk.send('session.update', { session });
      await talk.until('session.updated');
      talk.type('What is the weather in Paris?');
      await talk.until('conversation.item.done');
      const number = talk.inbox.events.length;
      talk.send('response.create');
      await talk.response();
      const { call_id } = checkToolCall(talk.inbox.events.slice(number));
      talk.send('session.update', { session: { type: 'realtime', tool_choice: 'none' } });
      const item = { type: 'function_call_output', call_id, output: '{"sky": "clear"}' };
      talk.send('conversation.item.create', { item });
      await talk.until('conversation.item.done', (event) => event.item.call_id === call_id);
      talk.send('response.create');
      const response = await talk.response();
      assert.equal(response.status, 'completed');
      assert.deepEqual(response.output.map(({ type }) => type), ['message']);
    }),

  cancel: () =>
    Talk.with(async (talk) => {
      talk.type(STORY);
      talk.send('response.create');
      const heard = await talk.hearSome(5);
      talk.send('response.cancel');
      const response = await talk.response();
      assert.deepEqual([response.id, response.status], [heard.response_id, 'cancelled']);
      assert.equal(response.status_details.reason, 'client_cancelled');
      talk.send('response.cancel', { event_id: 'again' });
      await talk.until('error');
      const { code, event_id } = talk.takeFailure();
      assert.deepEqual([code, event_id], ['response_cancel_not_active', 'again']);
      await talk.proveAlive();
    }),

  error: () =>
    Talk.with(async (talk) => {
      talk.send('conversation.item.retrieve', { item_id: 'nowhere', event_id: 'mine' });
      await talk.until('error');
      const { code, event_id } = talk.takeFailure();
      assert.deepEqual([code, event_id], ['item_retrieve_invalid_item_id', 'mine']);
      await talk.proveAlive();
    }),

  // The package's own: a new session on the same object.
  reconnect: () =>
    Talk.with(
      async (talk) => {
        await talk.proveAlive();
        const [first] = talk.inbox.events;
        await cut();
        const again = await talk.until('session.created');
        assert.notEqual(again.session.id, first.session.id);
        talk.inbox = new Inbox();
        await talk.proveAlive();
      },
      'gpt-realtime',
      { reconnect: true, reconnectInitialDelay: 50 },
    ),

  // The package still has clients of the beta dialect: their user is told what is wrong.
  beta: async () => {
    const client = new OpenAI({ baseURL: `${http}/v1`, apiKey: 'sk-test' });
    const socket = new BetaSocket({ model: 'gpt-4o-realtime-preview' }, client);
    const told = new Inbox();
    socket.on('error', ({ error }) => told.put({ type: 'error', error }));
    const { error } = await told.until('error');
    socket.close();
    assert.equal(error.code, 'beta_api_shape_disabled');
  },
};

await main(scenarios, names);

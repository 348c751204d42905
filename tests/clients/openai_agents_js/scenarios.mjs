// The npm package `@openai/agents`: a RealtimeSession over its WebSocket transport.
// Its schemas are strict where it matters, but what does not fit them is passed on as an event of an
// unknown kind and then ignored. So every event of the server must also come out by its own name.

import assert from 'node:assert/strict';
import { RealtimeAgent, RealtimeSession, tool } from '@openai/agents/realtime';
import { z } from 'zod';
import {
  BYTES_PER_S, CLOSING_OF_A_CUT, Inbox, READER, SPOKEN_TURN, STORY, checkArguments, checkChain,
  checkToolCall, cut, http, loudest, main, outline, overlap, pieces, speech, transcripts, weather,
} from './scene.mjs';

const UNKNOWN_TO_IT = ['input_audio_buffer.timeout_triggered'];

class Talk {
  inbox = new Inbox();
  failures = [];
  spoken = [];
  #numRead = 0;

  constructor({ tools = [], ...config } = {}) {
    const agent = new RealtimeAgent({ name: 'assistant', instructions: 'Answer briefly.', tools });
    this.session = new RealtimeSession(agent, { transport: 'websocket', config });
    const { transport } = this.session;
    const emit = transport.emit.bind(transport);
    transport.emit = (name, ...told) => {
      if (told[0]?.event_id && name === told[0].type) this.#numRead += 1;
      return emit(name, ...told);
    };
    transport.on('*', (event) => {
      if (event.type === 'error') this.#numRead += 1; // comes out as one of the application's
      this.inbox.put(event);
    });
    this.session.on('audio', ({ data }) => this.spoken.push(Buffer.from(data)));
    this.session.on('error', ({ error }) => this.failures.push(error));
    this.session.on('audio_interrupted', () => this.inbox.put({ type: 'told: stop playing' }));
  }

  static async with(story, { model = 'gpt-realtime', ...config } = {}) {
    const talk = new Talk(config);
    const url = `${http.replace('http', 'ws')}/v1/realtime?model=${model}`;
    try {
      await talk.session.connect({ apiKey: 'x', url });
      await talk.until('session.created');
      await story(talk);
      assert.deepEqual(talk.failures, []);
      checkChain(talk.sent);
      const unread = talk.sent.filter(({ type }) => !UNKNOWN_TO_IT.includes(type)).length;
      assert.equal(talk.#numRead, unread, 'events that did not fit the schemas');
    } finally {
      talk.session.close();
    }
  }

  get sent() {
    return this.inbox.events.filter((event) => event.event_id);
  }

  until(type, where) {
    return this.inbox.until(type, where);
  }

  // The first event of this type, be it one that has come already.
  async everSent(wanted) {
    return this.sent.find(({ type }) => type === wanted) ?? (await this.until(wanted));
  }

  say(pcm) {
    for (const piece of pieces(pcm)) {
      this.session.sendAudio(piece.buffer.slice(piece.byteOffset, piece.byteOffset + piece.length));
    }
  }

  async hearSome(numDeltas) {
    let delta;
    for (let n = 0; n < numDeltas; n++) delta = await this.until('response.output_audio.delta');
    return delta;
  }

  async proveAlive() {
    this.session.sendMessage('Say hello.');
    await this.until('response.done', ({ response }) => response.status === 'completed');
  }
}

const scenarios = {
  spoken_turn: () =>
    Talk.with(async (talk) => {
      const said = 'conf-locked';
      talk.say(speech(said));
      await talk.until('rate_limits.updated');
      const heard = await talk.everSent('conversation.item.input_audio_transcription.completed');
      assert.ok(overlap(transcripts[said], heard.transcript) >= 0.7, heard.transcript);
      const begun = talk.sent.findIndex((event) => event.type === SPOKEN_TURN[0]);
      const turn = outline(talk.sent.slice(begun)).filter((each) => SPOKEN_TURN.includes(each));
      assert.deepEqual(turn, SPOKEN_TURN);
      assert.ok(loudest(Buffer.concat(talk.spoken)) > 1000);
      const retrieved = await talk.everSent('conversation.item.retrieved');
      assert.equal(retrieved.item.content[0].transcript, heard.transcript);
    }),

  // It stops playing, says by itself what was heard, and asks for the item as it is then.
  barge_in: () =>
    Talk.with(
      async (talk) => {
        const heard = await talk.hearSome(15);
        talk.say(speech('all-circuits-busy-now', 0));
        await talk.until('told: stop playing');
        const { response } = await talk.until('response.done');
        await talk.until('rate_limits.updated');
        const number = talk.sent.findIndex(({ type }) => type.endsWith('.speech_started'));
        const closing = outline(talk.sent.slice(number + 1));
        assert.deepEqual(closing.filter((type) => CLOSING_OF_A_CUT.includes(type)), CLOSING_OF_A_CUT);
        assert.deepEqual([response.id, response.status], [heard.response_id, 'cancelled']);
        assert.equal(response.status_details.reason, 'turn_detected');
        const retrieved = await talk.everSent('conversation.item.retrieved');
        assert.deepEqual([retrieved.item.id, retrieved.item.status], [heard.item_id, 'incomplete']);
        talk.say(Buffer.alloc(2 * BYTES_PER_S));
        const again = await talk.hearSome(1);
        assert.notEqual(again.response_id, heard.response_id);
      },
      { model: READER },
    ),

  // It calls the function, sends what that gave, and asks for the next response by itself.
  tool_call: async () => {
    const asked = [];
    const getWeather = tool({
      name: 'get_weather',
      description: 'The weather of a city.',
      parameters: z.object({ city: z.enum(weather.properties.city.enum) }),
      execute: async ({ city }) => {
        asked.push(city);
        return 'clear';
      },
    });
    await Talk.with(
      async (talk) => {
        talk.session.sendMessage('What is the weather in Paris?');
        await talk.until('response.created');
        const number = talk.sent.length - 1;
        await talk.until('rate_limits.updated');
        const item = checkToolCall(talk.sent.slice(number));
        checkArguments(item.arguments);
        // A small model may ask for two cities at once.
        const called = talk.sent.slice(number).filter(
          (event) => event.type === 'response.output_item.done' && event.item.type === 'function_call',
        );
        const cities = called.map((event) => JSON.parse(event.item.arguments).city);
        const { item: output } = await talk.until(
          'conversation.item.done',
          (event) => event.item.type === 'function_call_output',
        );
        assert.deepEqual([output.call_id, output.output], [item.call_id, 'clear']);
        assert.ok(asked.length >= 1);
        assert.deepEqual(asked, cities.slice(0, asked.length));
        await talk.until('response.created');
      },
      { tools: [getWeather], toolChoice: 'required' },
    );
  },

  // As a button would: it cancels, and says what was heard.
  cancel: () =>
    Talk.with(async (talk) => {
      talk.session.sendMessage(STORY);
      const heard = await talk.hearSome(5);
      talk.session.interrupt();
      const { response } = await talk.until('response.done');
      assert.deepEqual([response.id, response.status], [heard.response_id, 'cancelled']);
      assert.equal(response.status_details.reason, 'client_cancelled');
      await talk.proveAlive();
    }),

  error: () =>
    Talk.with(async (talk) => {
      const wrong = { type: 'conversation.item.retrieve', item_id: 'nowhere', event_id: 'mine' };
      talk.session.transport.sendEvent(wrong);
      await talk.until('error');
      assert.equal(talk.failures.length, 1);
      const { error } = talk.failures.pop();
      assert.deepEqual([error.code, error.event_id], ['item_retrieve_invalid_item_id', 'mine']);
      await talk.proveAlive();
    }),

  // It tells of the broken connection; the application connects the same session anew.
  reconnect: async () => {
    const ids = [];
    const talkOnce = (story) =>
      Talk.with(async (talk) => {
        ids.push(talk.sent[0].session.id);
        await talk.proveAlive();
        await story(talk);
      });
    await talkOnce(async (talk) => {
      const changed = new Promise((resolve) => {
        talk.session.transport.on('connection_change', resolve);
      });
      await cut();
      assert.equal(await changed, 'disconnected');
    });
    await talkOnce(async () => {});
    assert.equal(new Set(ids).size, 2);
  },
};

await main(scenarios, process.argv.slice(2));

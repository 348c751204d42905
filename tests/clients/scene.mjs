// What a stock JavaScript client is given, and how it tells how it fared: scene.py for Node.
// Node's own modules only. The runner sets HALFSEC_CLIENTS_SCENE, the path of its description.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';

export const BYTES_PER_S = 48_000;
export const PATIENCE_MS = 60_000; // for any one thing: only a hang takes so long
export const STORY = 'Tell me a long story about a dragon.';
export const READER = 'reader';

const told = JSON.parse(readFileSync(process.env.HALFSEC_CLIENTS_SCENE, 'utf8'));
export const { http, transcripts, weather, spoken_turn: SPOKEN_TURN, tool_call: TOOL_CALL } = told;
export const CLOSING_OF_A_CUT = SPOKEN_TURN.slice(SPOKEN_TURN.indexOf('response.output_audio.done'));

// A recording and the silence behind it: PCM16 at 24 kHz.
export function speech(name, silenceS = 2) {
  return Buffer.concat([readFileSync(told.recordings[name]), Buffer.alloc(silenceS * BYTES_PER_S)]);
}

// What a microphone gives, piece by piece.
export function* pieces(pcm, pieceMs = 20) {
  const size = (BYTES_PER_S * pieceMs) / 1000;
  for (let first = 0; first < pcm.length; first += size) yield pcm.subarray(first, first + size);
}

export function loudest(pcm) {
  let most = 0;
  for (let at = 0; at + 1 < pcm.length; at += 2) most = Math.max(most, Math.abs(pcm.readInt16LE(at)));
  return most;
}

// Share of the words said that were heard.
export function overlap(said, heard) {
  const [a, b] = [said, heard].map(
    (text) => new Set(text.toLowerCase().replace(/[^a-z0-9 ]/g, '').split(' ').filter(Boolean)),
  );
  return [...a].filter((word) => b.has(word)).length / a.size;
}

// Types in order: of repeated deltas only the first, nothing of transcription.
export function outline(events) {
  const kept = [];
  for (const { type } of events) {
    if (type.includes('input_audio_transcription')) continue;
    if (type.endsWith('.delta') && kept.includes(type)) continue;
    kept.push(type);
  }
  return kept;
}

// Ids that are unique, and items that each stand behind the one before.
export function checkChain(events) {
  const ids = events.map((event) => event.event_id);
  assert.equal(new Set(ids).size, ids.length);
  let last = null;
  for (const event of events) {
    if (event.type !== 'conversation.item.added') continue;
    assert.equal(event.previous_item_id, last);
    last = event.item.id;
  }
}

// The first function call of a response as clients depend on it: order, ids, whole arguments. Returns
// its item. Other calls may follow, a client's own doings may be answered in between, and a client
// that asks for the next response by itself may have its beginning already.
export function checkToolCall(received) {
  const end = received.findIndex(({ type }) => type === 'rate_limits.updated');
  const all = received.slice(0, end + 1);
  const begun = all.find(({ type }) => type === 'response.output_item.added').item;
  const about = ['response.created', 'response.done', 'rate_limits.updated'];
  const itemOf = (event) => event.item_id ?? event.item?.id;
  const events = all.filter((each) => about.includes(each.type) || itemOf(each) === begun.id);
  assert.deepEqual(outline(events), TOOL_CALL);
  const find = (type) => events.find((event) => event.type === type);
  const { item } = find('response.output_item.done');
  assert.deepEqual([begun.type, begun.status], ['function_call', 'in_progress']);
  assert.deepEqual([item.type, item.status, item.name], ['function_call', 'completed', 'get_weather']);
  assert.deepEqual([begun.call_id, begun.name], [item.call_id, item.name]);
  const whole = find('response.function_call_arguments.done');
  const deltas = events.filter(({ type }) => type === 'response.function_call_arguments.delta');
  assert.equal(deltas.map(({ delta }) => delta).join(''), item.arguments);
  assert.deepEqual(
    [whole.arguments, whole.call_id, whole.name],
    [item.arguments, item.call_id, item.name],
  );
  checkArguments(item.arguments);
  const { response } = find('response.done');
  assert.deepEqual([response.status, response.output[0].id], ['completed', item.id]);
  return item;
}

export function checkArguments(text) {
  assert.ok(weather.properties.city.enum.includes(JSON.parse(text).city), text);
}

// Break all connections to the service, as a network does. The answer comes when it is done.
export async function cut() {
  const socket = connect(told.cut_port, '127.0.0.1');
  socket.resume();
  await once(socket, 'end');
  socket.destroy();
}

// Events as they come, to be waited for in order.
export class Inbox {
  events = [];
  #next = 0;
  #wake = () => {};

  put(event) {
    this.events.push(event);
    this.#wake();
  }

  // The next event of this type (that `where` takes).
  async until(type, where = () => true) {
    return this.untilAny((event) => event.type === type && where(event), type);
  }

  async untilAny(wanted, what = 'an event') {
    const deadline = AbortSignal.timeout(PATIENCE_MS);
    for (;;) {
      while (this.#next < this.events.length) {
        const event = this.events[this.#next++];
        if (wanted(event)) return event;
      }
      await new Promise((resolve, reject) => {
        this.#wake = resolve;
        deadline.addEventListener('abort', () => {
          const last = this.events.slice(-5).map(({ type }) => type);
          reject(new Error(`no ${what} after ${last}`));
        });
      });
    }
  }
}

// Runs those named on the command line behind `first`, or all, one after another.
export async function main(scenarios, names) {
  const stray = [];
  process.on('unhandledRejection', (reason) => stray.push(reason));
  for (const name of names.length ? names : Object.keys(scenarios)) {
    let problem = null;
    try {
      await scenarios[name]();
      assert.deepEqual(stray, [], 'nobody caught these');
    } catch (error) {
      problem = String(error?.stack ?? error);
    }
    stray.length = 0;
    console.log(JSON.stringify({ scenario: name, problem }));
  }
  process.exit(0); // whatever a failed scenario left open
}

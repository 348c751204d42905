// What the dashboard keeps and how it reads the stream of events, without a browser.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ServerError } from '../../../web_demo/dashboard/data/api.js';
import { EventParser } from '../../../web_demo/dashboard/data/events.js';
import { problemsOf } from '../../../web_demo/dashboard/data/health.js';
import { count, milliseconds, percent } from '../../../web_demo/dashboard/data/format.js';
import { rowOf } from '../../../web_demo/dashboard/data/turn-row.js';
import { MAX_ROWS, TurnList } from '../../../web_demo/dashboard/data/turn-list.js';

const ALL = { since: '0', until: '', profile: '', session: '' };

const turn = (row, fields = {}) => ({ session: 's', turn: row, row, e2e_ear_ms: 400, ...fields });

/** Answers with what it is told, in order, and keeps the questions. */
class FakeApi {
  constructor(...answers) {
    this.answers = answers;
    this.asked = [];
  }

  async json(path, query) {
    this.asked.push(query);
    const answer = this.answers.shift();
    if (answer instanceof Error) throw answer;
    return answer;
  }
}

async function listOf(...answers) {
  const api = new FakeApi(...answers);
  const list = new TurnList(api, () => {});
  await list.reset(ALL);
  return { api, list };
}

const numbers = (list) => Array.from({ length: list.length }, (_, place) => list.at(place).turn);

const STREAM =
  ': hello\nretry: 1000\n\nid: 7\nevent: turn\ndata: {"a":1}\n\n: still here\n\n' +
  'id: 8\r\nevent: mark\r\ndata: [1,\r\ndata: 2]\r\n\r\n';

test('a stream reads the same whole and a character at a time', () => {
  const expected = [
    { id: '7', kind: 'turn', data: '{"a":1}' },
    { id: '8', kind: 'mark', data: '[1,\n2]' },
  ];
  assert.deepEqual(new EventParser().push(STREAM), expected);
  const parser = new EventParser();
  assert.deepEqual([...STREAM].flatMap((letter) => parser.push(letter)), expected);
});

test('an event without an end is not waited for', () => {
  const parser = new EventParser();
  assert.throws(() => {
    for (let times = 0; times < 10; times += 1) parser.push(`data: ${'x'.repeat(1_000_000)}`);
  }, /without an end/);
});

test('a day of turns takes bounded room, and what went can be asked for again', async () => {
  const { api, list } = await listOf({ turns: [turn(1)], before: null });
  for (let row = 2; row <= MAX_ROWS + 5001; row += 1) list.add(turn(row));
  assert.ok(list.length <= MAX_ROWS);
  assert.equal(list.at(0).turn, MAX_ROWS + 5001);
  const oldest = list.at(list.length - 1);
  assert.equal(list.rowOf('s/1'), null);
  assert.equal(list.placeOf(oldest.key), list.length - 1);
  assert.ok(list.hasMore);
  api.answers.push({ turns: [turn(oldest.turn - 2), turn(oldest.turn - 1)], before: 5 });
  await list.more();
  assert.equal(api.asked.at(-1).before, oldest.row);
  assert.equal(list.at(list.length - 1).turn, oldest.turn - 2);
});

test('turns that ended just now get their place in the store when it is known', async () => {
  const { api, list } = await listOf({ turns: [], before: null });
  list.add(turn(1, { row: null }));
  assert.equal(list.at(0).row, null);
  api.answers.push({ turns: [turn(1)], before: null });
  await list.refresh(ALL);
  assert.equal(list.at(0).row, 1);
  for (let row = 2; row <= MAX_ROWS + 1; row += 1) list.add(turn(row, { row: null }));
  assert.ok(list.wasCut);
  assert.equal(list.hasMore, false);
});

test('a turn that ends while the first page is on its way is there once', async () => {
  let answer;
  const list = new TurnList({ json: () => new Promise((done) => (answer = done)) }, () => {});
  const reading = list.reset(ALL);
  list.add(turn(2));
  list.add(turn(3));
  answer({ turns: [turn(1), turn(2)], before: null });
  await reading;
  assert.deepEqual(numbers(list), [3, 2, 1]);
});

test('after a gap it begins anew, and without one it goes on', async () => {
  const page = (first, length) => Array.from({ length }, (_, place) => turn(first + place));
  const { api, list } = await listOf({ turns: page(1, 100), before: null });
  api.answers.push({ turns: page(51, 100), before: 51 });
  await list.refresh(ALL);
  assert.equal(list.length, 150);
  assert.equal(list.hasMore, false);
  api.answers.push({ turns: page(901, 100), before: 901 });
  await list.refresh(ALL);
  assert.equal(list.length, 100);
  assert.ok(list.hasMore);
});

test('an answer to a question of before is not taken', async () => {
  const answers = [];
  const api = { json: () => new Promise((done) => answers.push(done)) };
  const list = new TurnList(api, () => {});
  const first = list.reset(ALL);
  const second = list.reset({ ...ALL, profile: 'cpu' });
  answers[1]({ turns: [turn(9)], before: null });
  answers[0]({ turns: [turn(1)], before: null });
  await Promise.all([first, second]);
  assert.deepEqual(numbers(list), [9]);
});

test('without a store the newest are taken from memory', async () => {
  const why = 'Older turns are not kept here.';
  const { api, list } = await listOf(new ServerError(400, why), { turns: [turn(1), turn(2)] });
  assert.equal(list.noHistory, why);
  assert.deepEqual(numbers(list), [2, 1]);
  assert.deepEqual(api.asked[1], { session: '', limit: 1000 });
});

test('what is not known of a turn stays unknown', () => {
  const bare = rowOf({ session: 's', turn: 1 });
  assert.equal(bare.waitMs, null);
  assert.equal(bare.within, null);
  assert.equal(bare.atMs, null);
  assert.equal(bare.note, 'not answered');
  // What was held back on purpose is not late for that.
  const paced = rowOf(turn(1, { e2e_ear_ms: 640, e2e_raw_ms: 480 }));
  assert.equal(paced.within, true);
});

test('no share looks as if it met what it misses', () => {
  assert.equal(percent(0.98999), '98.9 %');
  assert.equal(percent(0.99), '99 %');
  assert.equal(percent(1), '100 %');
  assert.equal(percent(0.9999), '99.9 %');
  assert.equal(percent(null), '–');
  assert.equal(milliseconds(4.25), '4.3 ms');
  assert.equal(milliseconds(undefined), '–');
  assert.equal(milliseconds(12_340), '12.3 s');
  assert.equal(count(10_000), '10,000');
});

test('every problem that the server tells of is shown with its reason', () => {
  const facts = { status: 'degraded', stages: { llm: 'ready' }, calls: 2, needs_key: true };
  assert.deepEqual(problemsOf({ ...facts, model: { name: 'm' } }), []);
  const problems = {
    end_of_turn: 'version 1, this needs 2',
    tools: { weather: 'it has ended', files: 'no such command' },
    state_store: "can't be reached",
  };
  assert.deepEqual(problemsOf({ ...facts, ...problems }), [
    'end_of_turn: version 1, this needs 2',
    'tools: weather: it has ended',
    'tools: files: no such command',
    "state_store: can't be reached",
  ]);
});

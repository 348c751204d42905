// The Realtime client and the conversation, without a browser.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { samplesFromBase64, toBase64 } from '../../../web_demo/call/base64.js';
import { Conversation } from '../../../web_demo/call/conversation.js';
import { toInt16 } from '../../../web_demo/audio/pcm.js';
import { PreferenceStore } from '../../../web_demo/call/preferences.js';
import { RealtimeClient } from '../../../web_demo/call/realtime-client.js';
import { resumptionOrder } from '../../../web_demo/call/resend-buffer.js';
import { SessionSettings } from '../../../web_demo/call/session-settings.js';
import { Uplink } from '../../../web_demo/call/uplink.js';

class FakeSocket {
  static sockets = [];

  constructor(url, protocols) {
    this.url = url;
    this.protocols = protocols;
    this.protocol = 'halfsec.v1';
    this.readyState = 0;
    this.bufferedAmount = 0;
    this.sent = [];
    FakeSocket.sockets.push(this);
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.readyState = 3;
  }

  /** The server greets. */
  greet() {
    this.readyState = 1;
    this.onmessage({ data: JSON.stringify({ type: 'session.created', session: {} }) });
  }

  /** The connection breaks. */
  break(code, reason = '') {
    this.readyState = 3;
    this.onclose({ code, reason });
  }
}

function setUp(t) {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  FakeSocket.sockets = [];
  const client = new RealtimeClient('ws://here/v1/realtime', { WebSocket: FakeSocket });
  const states = [];
  client.addEventListener('status', ({ detail }) => states.push(detail));
  return { client, states, last: () => FakeSocket.sockets.at(-1) };
}

test('a session is open once the server has greeted, not before', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  client.connect();
  assert.equal(FakeSocket.sockets.length, 1);
  assert.deepEqual(last().protocols, ['realtime', 'halfsec.v1']);
  assert.equal(client.send({ type: 'response.create' }), false);
  last().greet();
  assert.equal(client.status.state, 'open');
  assert.equal(client.send({ type: 'response.create' }), true);
});

test('a lost server is tried again in growing pauses, at most every 12.5 s', (t) => {
  const { client, states, last } = setUp(t);
  client.connect();
  for (let i = 0; i < 8; i += 1) {
    last().break(1006);
    mock.timers.tick(states.at(-1).retryInMs);
  }
  const pauses = states.filter(({ state }) => state === 'waiting').map((s) => s.retryInMs);
  assert.equal(FakeSocket.sockets.length, 9);
  for (let i = 0; i < pauses.length; i += 1) {
    const pause = Math.min(10_000, 500 * 2 ** i);
    assert.ok(pauses[i] >= pause && pauses[i] <= 1.25 * pause, `${pauses}`);
  }
  last().greet();
  last().break(1006);
  assert.ok(states.at(-1).retryInMs <= 625, 'a success resets the pause');
  assert.equal(states.at(-1).wasOpen, true);
});

test('a server that accepts and stays silent counts as gone', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  const silent = last();
  mock.timers.tick(10_000);
  assert.equal(client.status.state, 'waiting');
  silent.onmessage({ data: '{"type":"session.created"}' });
  assert.equal(client.status.state, 'waiting');
});

/** The server says something. */
function tell(socket, event) {
  socket.onmessage({ data: JSON.stringify(event) });
}

test('a lost call is resumed, and what did not arrive is sent again', (t) => {
  const { client, states, last } = setUp(t);
  client.connect();
  last().greet();
  tell(last(), { type: 'halfsec.session', resume_token: 'resume_1', resume_s: 60 });
  client.sendText('one');
  client.appendAudio(new Int16Array(480));
  client.sendText('two');
  client.cancelResponse();
  last().break(1006);
  assert.equal(states.at(-1).resumable, true);
  assert.ok(states.at(-1).retryInMs <= 125);
  mock.timers.tick(125);
  assert.equal(last().url, 'ws://here/v1/realtime?resume=resume_1');
  last().readyState = 1;
  tell(last(), { type: 'session.updated', session: {} });
  assert.equal(client.status.state, 'connecting');
  assert.equal(client.send({ type: 'response.create' }), false);
  tell(last(), { type: 'halfsec.resumed', received: 3, items: [] });
  assert.deepEqual(client.status, { state: 'open', resumed: true });
  assert.deepEqual(
    last().sent.map(({ type, item }) => item?.content[0].text ?? type),
    ['two', 'response.create'],
  );
  tell(last(), { type: 'halfsec.session', resume_token: 'resume_2', resume_s: 60 });
  last().break(1011);
  mock.timers.tick(125);
  last().readyState = 1;
  tell(last(), { type: 'halfsec.resumed', received: 4, items: [] });
  assert.deepEqual(
    last().sent.map(({ type }) => type),
    ['response.create'],
    'frames are counted through all connections',
  );
});

test('a call that is gone is followed by another one', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  last().greet();
  tell(last(), { type: 'halfsec.session', resume_token: 'resume_1', resume_s: 60 });
  client.sendText('one');
  last().break(1006);
  mock.timers.tick(125);
  last().break(4404, 'there is no call to come back to');
  mock.timers.tick(2_500);
  assert.equal(last().url, 'ws://here/v1/realtime');
  last().greet();
  assert.deepEqual(client.status, { state: 'open', resumed: false });
  assert.deepEqual(last().sent, []);
});

test('a call that goes on elsewhere is left alone', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  last().greet();
  tell(last(), { type: 'halfsec.session', resume_token: 'resume_1', resume_s: 60 });
  last().break(4409, 'the call goes on at another connection');
  mock.timers.tick(60_000);
  assert.equal(client.status.state, 'closed');
  assert.equal(FakeSocket.sockets.length, 1);
});

test('a connection by which nothing gets through is given up, the call is not', (t) => {
  const { client, last } = setUp(t);
  let now = 1;
  t.mock.method(performance, 'now', () => now);
  client.connect();
  last().greet();
  tell(last(), { type: 'halfsec.session', resume_token: 'resume_1', resume_s: 60 });
  const stuck = last();
  let code = 0;
  stuck.close = (given) => (code = given);
  stuck.bufferedAmount = 1e6;
  for (; now < 4_500; now += 20) client.appendAudio(new Int16Array(480));
  assert.equal(code, 4408);
  assert.equal(client.status.state, 'waiting');
  mock.timers.tick(125);
  assert.equal(last().url, 'ws://here/v1/realtime?resume=resume_1');
});

test('what is said while a key is asked for does not make the connection slow', (t) => {
  const { client, last } = setUp(t);
  const uplink = new Uplink(client);
  let slow = 0;
  uplink.addEventListener('slow', () => (slow += 1));
  client.connect();
  for (let i = 0; i < 500; i += 1) uplink.add(new Int16Array(480).fill(i), true);
  last().send = function (text) {
    this.bufferedAmount += text.length; // nothing leaves within one task
    this.sent.push(JSON.parse(text));
  };
  last().greet();
  uplink.flush();
  assert.equal(slow, 0);
  const newest = samplesFromBase64(last().sent.at(-1).audio);
  assert.equal(Math.round(newest[0] * 32768), 499);
  assert.ok(last().sent.length >= 50);
});

test('a refusal in principle is final, and so is hanging up', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  last().greet();
  last().break(1008, 'not you');
  assert.deepEqual(client.status, { state: 'closed', code: 1008, reason: 'not you' });
  client.connect();
  client.close();
  last().break?.call(last(), 1006);
  mock.timers.tick(60_000);
  assert.equal(client.status.state, 'closed');
  assert.equal(FakeSocket.sockets.length, 2);
});

test('audio is dropped, not delayed, when the network is too slow', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  last().greet();
  const batch = Int16Array.from({ length: 480 }, (_, i) => i - 240);
  assert.equal(client.appendAudio(batch), true);
  last().bufferedAmount = 1e6;
  assert.equal(client.appendAudio(batch), false);
  assert.equal(client.droppedMs, 20);
  const heard = samplesFromBase64(last().sent[0].audio);
  assert.deepEqual(toInt16(heard), batch);
});

test('only a server that understands them gets playback reports', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  last().greet();
  client.reportPlayback('item_1', 199.7);
  client.truncate('item_1', 199.7);
  last().protocol = 'realtime';
  client.reportPlayback('item_1', 400);
  assert.deepEqual(last().sent, [
    { type: 'halfsec.playback', item_id: 'item_1', played_ms: 199 },
    { type: 'conversation.item.truncate', item_id: 'item_1', content_index: 0, audio_end_ms: 199 },
  ]);
});

test('samples survive base64 to the bit', () => {
  const all = Int16Array.from({ length: 65536 }, (_, i) => i - 32768);
  assert.deepEqual(toInt16(samplesFromBase64(toBase64(new Uint8Array(all.buffer)))), all);
});

function listenTo(conversation) {
  const seen = { messages: [], removed: [], turns: [] };
  conversation.addEventListener('message', ({ detail }) => seen.messages.push(detail));
  conversation.addEventListener('removed', ({ detail }) => seen.removed.push(detail));
  conversation.addEventListener('turn', ({ detail }) => seen.turns.push(detail));
  return seen;
}

const TRANSCRIPTION = 'conversation.item.input_audio_transcription';

test('a transcript that only grows is shown by servers without live partials', () => {
  const conversation = new Conversation();
  const seen = listenTo(conversation);
  conversation.handle({ type: 'input_audio_buffer.speech_started', item_id: 'a' });
  for (const delta of ['What ', 'time']) {
    conversation.handle({ type: `${TRANSCRIPTION}.delta`, item_id: 'a', delta });
  }
  conversation.handle({ type: `${TRANSCRIPTION}.completed`, item_id: 'a', transcript: 'What time?' });
  assert.deepEqual(
    seen.messages.map(({ text, state }) => [text, state]),
    [
      ['', 'live'],
      ['What ', 'live'],
      ['What time', 'live'],
      ['What time?', 'done'],
    ],
  );
});

function speak(conversation, itemId, text) {
  conversation.handle({
    type: 'response.output_item.added',
    item: { id: itemId, type: 'message' },
  });
  conversation.handle({
    type: 'response.output_audio_transcript.delta',
    item_id: itemId,
    delta: text,
  });
  conversation.addAudio(itemId, 1000);
}

function measured(conversation, agentText, itemId) {
  const turn = { agent_text: agentText, item_id: itemId };
  conversation.handle({ type: 'halfsec.turn', turn });
}

test('a turn finds its reply by id, by what was heard of it, or by order', () => {
  const conversation = new Conversation();
  const seen = listenTo(conversation);
  speak(conversation, 'a', 'One thing.');
  speak(conversation, 'b', 'Another thing.');
  speak(conversation, 'c', 'Last thing.');
  measured(conversation, 'Another');
  measured(conversation, '', 'c');
  measured(conversation, '');
  measured(conversation, 'of nobody');
  assert.deepEqual(
    seen.turns.map(({ itemId }) => itemId),
    ['b', 'c', 'a'],
  );
});

test('a reply that was cut stays cut, whatever arrives late', () => {
  const conversation = new Conversation();
  const seen = listenTo(conversation);
  speak(conversation, 'a', 'A long story');
  conversation.played('a', 500, false);
  conversation.cut('a', 520);
  conversation.played('a', 900, true);
  const output = [{ id: 'a' }];
  conversation.handle({ type: 'response.done', response: { status: 'completed', output } });
  const last = seen.messages.at(-1);
  assert.equal(last.state, 'cut');
  assert.equal(last.text.slice(0, last.sureChars), 'A long');
});

test('a new connection finishes what was in the air', () => {
  const conversation = new Conversation();
  const seen = listenTo(conversation);
  conversation.handle({ type: 'input_audio_buffer.speech_started', item_id: 'a' });
  conversation.reset();
  assert.deepEqual(seen.removed, ['a']);
  conversation.handle({ type: 'halfsec.partial', item_id: 'b', text: 'Half a', stable_chars: 5 });
  conversation.reset();
  assert.equal(seen.messages.at(-1).state, 'failed');
  assert.equal(seen.messages.at(-1).text, 'Half a');
});

test('the key that is asked for is offered, and asked for anew with each connection', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  FakeSocket.sockets = [];
  const secrets = ['ek_1', 'ek_2', null];
  const getSecret = () => Promise.resolve(secrets.shift());
  const client = new RealtimeClient('ws://here/v1/realtime', { WebSocket: FakeSocket, getSecret });
  const offered = [];
  for (let number = 0; number < 3; number += 1) {
    client.connect();
    assert.equal(client.status.state, 'connecting');
    await settled();
    const socket = FakeSocket.sockets.at(-1);
    offered.push(socket.protocols.slice(2));
    socket.greet();
    client.close();
  }
  const key = 'openai-insecure-api-key.';
  assert.deepEqual(offered, [[`${key}ek_1`], [`${key}ek_2`], []]);
});

test('without a key it tries again, unless it was told to end', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  FakeSocket.sockets = [];
  let give = () => {};
  const getSecret = () => new Promise((resolve, reject) => (give = { resolve, reject }));
  const client = new RealtimeClient('ws://here/v1/realtime', { WebSocket: FakeSocket, getSecret });
  client.connect();
  give.reject(new Error('no network'));
  await settled();
  assert.equal(client.status.state, 'waiting');
  mock.timers.tick(1000);
  assert.equal(client.status.state, 'connecting');
  client.close();
  give.resolve('ek_late');
  await settled();
  client.connect();
  client.close();
  give.reject(new Error('late'));
  await settled();
  assert.equal(client.status.state, 'closed');
  assert.equal(FakeSocket.sockets.length, 0);
});

/** Promises that are settled have been taken notice of. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

test('a server that does not answer after a pause counts as gone, and the call is taken up', (t) => {
  const { client, states, last } = setUp(t);
  client.connect();
  last().greet();
  last().onmessage({ data: JSON.stringify({ type: 'halfsec.session', resume_token: 'one' }) });
  client.check();
  assert.deepEqual(last().sent, [{ type: 'session.update', session: { type: 'realtime' } }]);
  last().onmessage({ data: JSON.stringify({ type: 'session.updated', session: {} }) });
  mock.timers.tick(60_000);
  assert.equal(client.status.state, 'open');
  client.check();
  // What came in before the pause is no sign of life.
  last().onmessage({ data: JSON.stringify({ type: 'response.done', response: {} }) });
  mock.timers.tick(2_000);
  assert.equal(client.status.state, 'waiting');
  mock.timers.tick(states.at(-1).retryInMs);
  assert.match(last().url, /resume=one/);
  client.close();
  client.check();
  assert.equal(client.status.state, 'closed');
});

test('it comes back when the server says, not before', (t) => {
  const { client, last } = setUp(t);
  client.retryIn(1);
  mock.timers.tick(10);
  assert.equal(FakeSocket.sockets.length, 0, 'nobody had called');
  client.connect();
  last().break(1006);
  client.retryIn(10_000);
  mock.timers.tick(9_999);
  assert.equal(FakeSocket.sockets.length, 1);
  mock.timers.tick(2_501);
  assert.equal(FakeSocket.sockets.length, 2);
});

/** An open call that can be resumed. */
function talking(t) {
  const made = setUp(t);
  made.client.connect();
  made.last().greet();
  tell(made.last(), { type: 'halfsec.session', resume_token: 'one', resume_s: 60 });
  return made;
}

/** The connection breaks, and the call goes on: `received` frames have reached the server. */
function resume({ last }, received, session = {}) {
  last().break(1006);
  mock.timers.tick(1000);
  last().readyState = 1;
  tell(last(), { type: 'session.updated', session: { type: 'realtime', ...session } });
  tell(last(), { type: 'halfsec.resumed', received, items: [] });
}

test('what is set when a call is taken up is set once', (t) => {
  const made = talking(t);
  const { client, last } = made;
  client.addEventListener('status', ({ detail }) => {
    if (detail.resumed) client.truncate('item_1', 500);
  });
  client.send({ type: 'response.create' });
  resume(made, 0);
  const types = last().sent.map(({ type }) => type);
  assert.deepEqual(types, ['conversation.item.truncate', 'response.create']);
});

function update(instructions) {
  return { type: 'session.update', session: { type: 'realtime', instructions } };
}

for (const type of ['status', 'event']) {
  test(`what is new when a call is taken up follows what was lost: sent at its ${type}`, (t) => {
    const made = talking(t);
    const { client, last } = made;
    client.send(update('lost'));
    client.truncate('item_1', 100);
    client.sendText('lost');
    client.addEventListener(type, ({ detail }) => {
      if (!detail.resumed && detail.type !== 'halfsec.resumed') return;
      if (FakeSocket.sockets.length > 2) return;
      assert.equal(client.send(update('new')), true);
      client.appendAudio(new Int16Array(480));
      client.truncate('item_2', 200);
      client.sendText('new');
    });
    resume(made, 0);
    client.sendText('last');
    const sent = () =>
      last().sent.map(
        ({ type: kind, session, item_id: itemId, item }) =>
          session?.instructions ?? itemId ?? item?.content[0].text ?? kind,
      );
    assert.deepEqual(sent(), [
      ...['item_1', 'item_2', 'lost', 'lost', 'response.create'],
      ...['new', 'input_audio_buffer.append', 'new', 'response.create'],
      ...['last', 'response.create'],
    ]);
    resume(made, 7); // up to the audio
    assert.deepEqual(sent(), ['new', 'response.create', 'last', 'response.create']);
  });
}

test('a call that is ended when it is taken up sends nothing more', (t) => {
  const made = talking(t);
  const { client, last } = made;
  client.sendText('lost');
  client.addEventListener('status', ({ detail }) => {
    if (!detail.resumed) return;
    client.sendText('new');
    client.close();
    client.connect();
  });
  resume(made, 0);
  last().greet();
  assert.deepEqual(
    FakeSocket.sockets.slice(1).map(({ sent }) => sent),
    [[], []],
  );
  assert.equal(client.send({ type: 'response.create' }), true);
  assert.deepEqual(last().sent, [{ type: 'response.create' }]);
});

test('what a closing connection does not take is sent on the next one', (t) => {
  const made = talking(t);
  const { client, last } = made;
  client.sendText('lost');
  client.addEventListener('status', ({ detail }) => {
    if (FakeSocket.sockets.length === 2 && detail.resumed) last().readyState = 2;
  });
  resume(made, 0);
  assert.deepEqual(last().sent, []);
  resume(made, 0);
  assert.deepEqual(
    last().sent.map(({ type }) => type),
    ['conversation.item.create', 'response.create'],
  );
});

test('a lost update is left out where it is repeated before anything depends on it', () => {
  const order = (lost, added) =>
    resumptionOrder(lost, added).map(({ type, session }) => session?.instructions ?? type);
  const [a, b, ask] = [update('a'), update('b'), { type: 'response.create' }];
  assert.deepEqual(order([a], [{ ...a, event_id: 'again' }]), ['a']);
  assert.deepEqual(order([a, b], [a]), ['b', 'a']);
  assert.deepEqual(order([a], [b]), ['a', 'b'], 'the second may be refused');
  assert.deepEqual(order([a, ask], [a]), ['a', 'response.create', 'a']);
  assert.deepEqual(order([ask, ask], []), ['response.create', 'response.create']);
});

/** Settings of a page on a call whose session has turn detection. */
function settingsOn(t) {
  const made = talking(t);
  const preferences = new PreferenceStore(null);
  const settings = new SessionSettings(made.client, preferences);
  const detection = { type: 'semantic_vad', eagerness: 'auto' };
  const session = { audio: { input: { turn_detection: detection } } };
  tell(made.last(), { type: 'session.updated', session: { type: 'realtime', ...session } });
  settings.apply(false);
  made.client.addEventListener('status', ({ detail }) => {
    if (detail.state === 'open') settings.apply(detail.resumed);
  });
  const detections = () =>
    made
      .last()
      .sent.filter(({ type }) => type === 'session.update')
      .map(({ session: { audio } }) => audio.input.turn_detection?.eagerness ?? null);
  return { ...made, preferences, settings, session, detections };
}

test('the setting that the user made last counts, though an older one was lost', (t) => {
  const made = settingsOn(t);
  made.preferences.change({ turns: 'hold' });
  assert.deepEqual(made.detections(), [null]);
  made.last().break(1006);
  made.preferences.change({ turns: 'auto' });
  resume(made, 0, made.session);
  assert.deepEqual(made.detections(), [null, 'auto']);
});

test('a setting that was lost is sent again once', (t) => {
  const made = settingsOn(t);
  made.preferences.change({ turns: 'hold' });
  resume(made, 0, made.session);
  assert.deepEqual(made.detections(), [null]);
});

test('a setting that is taken back before the server answers is taken back there', (t) => {
  const made = settingsOn(t);
  made.preferences.change({ turns: 'hold' });
  made.preferences.change({ turns: 'auto' });
  assert.deepEqual(made.detections(), [null, 'auto']);
});

test('a refusal of a setting that was changed since is none', (t) => {
  const { last, preferences, settings } = settingsOn(t);
  const refuse = ({ event_id: id }) =>
    tell(last(), { type: 'error', error: { event_id: id, message: 'no' } });
  preferences.change({ turns: 'hold' });
  preferences.change({ turns: 'low' });
  const [older, newer] = last().sent;
  refuse(older);
  assert.equal(settings.refusals.size, 0);
  refuse(newer);
  assert.equal(settings.refusals.get('turns'), 'no');
});

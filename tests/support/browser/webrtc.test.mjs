// Calls by WebRTC: when they are chosen, how they are connected, and what was heard of a reply.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { Conversation } from '../../../web_demo/call/conversation.js';
import { PreferenceStore } from '../../../web_demo/call/preferences.js';
import { RealtimeClient } from '../../../web_demo/call/realtime-client.js';
import { Uplink } from '../../../web_demo/call/uplink.js';
import {
  ConnectionChoice,
  LOSSY,
  ONE_STALL_MS,
  WITHIN_MS,
} from '../../../web_demo/webrtc/connection-choice.js';
import { callsUrl, PeerSocket } from '../../../web_demo/webrtc/peer-socket.js';
import { RemoteReplies } from '../../../web_demo/webrtc/remote-replies.js';

// --- the choice ---

test('the line is lossy after enough troubles in a minute, however they add up', () => {
  /** @type {[string, number][][]} */
  const lossy = [
    [['gap', 0], ['gap', 1], ['gap', 2]],
    [['broken', 0], ['gap', WITHIN_MS - 1]],
    [['broken', 0], ['broken', 1]],
    [['dropped', 0], ['dropped', ONE_STALL_MS], ['dropped', 2 * ONE_STALL_MS]],
  ];
  for (const troubles of lossy) {
    const choice = new ConnectionChoice();
    const verdicts = troubles.map(([trouble, atMs]) => {
      choice.note(trouble, atMs);
      return choice.usesWebRtc('auto');
    });
    assert.deepEqual(verdicts, [...troubles.slice(1).map(() => false), true], `${troubles}`);
    choice.ended();
    assert.ok(choice.usesWebRtc('auto'), 'also in later calls');
    assert.ok(!choice.usesWebRtc('websocket'));
  }
});

test('one stall of the network is one trouble, however many batches it drops', () => {
  const choice = new ConnectionChoice();
  for (let i = 0; i < 200; i += 1) choice.note('dropped', 20 * i);
  assert.ok(!choice.usesWebRtc('auto'));
});

test('troubles far apart are those of any line', () => {
  const choice = new ConnectionChoice();
  for (let i = 0; i < 100; i += 1) choice.note('gap', (i * WITHIN_MS) / (LOSSY - 1));
  choice.note('broken', 1000 * WITHIN_MS);
  choice.note('gap', 1001 * WITHIN_MS, 0);
  choice.note('gap', 1001 * WITHIN_MS, -2); // counted anew after a call
  assert.ok(!choice.usesWebRtc('auto'));
  choice.note('gap', 1002 * WITHIN_MS, LOSSY);
  assert.ok(choice.usesWebRtc('auto'));
});

test('WebRTC that failed is not tried again by itself, and once a call where it is asked for', () => {
  const choice = new ConnectionChoice();
  choice.note('gap', 0, LOSSY);
  choice.failed();
  assert.ok(!choice.usesWebRtc('auto'));
  assert.ok(!choice.usesWebRtc('webrtc'));
  choice.ended();
  assert.ok(!choice.usesWebRtc('auto'));
  assert.ok(choice.usesWebRtc('webrtc'));
});

// --- the client ---

class FakeSocket {
  static sockets = [];

  constructor(url, protocols) {
    Object.assign(this, { url, protocols, protocol: '', readyState: 1, bufferedAmount: 0 });
    this.sent = [];
    FakeSocket.sockets.push(this);
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close(code) {
    this.readyState = 3;
    this.closedWith = code;
  }

  tell(event) {
    this.onmessage({ data: JSON.stringify(event) });
  }
}

const GREETING = { type: 'session.created', session: { id: 'sess_1', type: 'realtime' } };

function setUp(t, isWanted = () => true) {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  FakeSocket.sockets = [];
  const open = (url, secret) => new FakeSocket(`tracks of ${url}`, secret);
  const client = new RealtimeClient('ws://here/v1/realtime', {
    WebSocket: FakeSocket,
    alternative: { isWanted, open },
  });
  const told = [];
  client.addEventListener('fallback', ({ detail }) => told.push(detail.reason));
  return { client, told, last: () => FakeSocket.sockets.at(-1) };
}

test('over tracks no audio is in events, and the server truncates', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  assert.equal(last().url, 'tracks of ws://here/v1/realtime');
  last().tell(GREETING);
  assert.equal(client.status.state, 'open');
  assert.equal(client.appendAudio(new Int16Array(480)), true);
  client.truncate('item_1', 300);
  client.reportPlayback('item_1', 300);
  assert.deepEqual(last().sent, []);
  client.sendText('Hello');
  client.clearOutput();
  const types = ['conversation.item.create', 'response.create', 'output_audio_buffer.clear'];
  assert.deepEqual(last().sent.map(({ type }) => type), types);
});

test('a commit waits for the audio beside the events, unless it is withdrawn', (t) => {
  const { client, last } = setUp(t);
  client.connect();
  last().tell(GREETING);
  client.commitAudio();
  client.clearAudio();
  mock.timers.tick(1000);
  assert.deepEqual(last().sent.map(({ type }) => type), ['input_audio_buffer.clear']);
  client.commitAudio();
  assert.equal(last().sent.length, 1);
  mock.timers.tick(1000);
  const types = last().sent.map(({ type }) => type);
  assert.deepEqual(types.slice(1), ['input_audio_buffer.commit', 'response.create']);
});

for (const [name, fail] of Object.entries({
  refused: (socket) => socket.onclose({ code: 1006, reason: 'no' }),
  silent: () => mock.timers.tick(8_000),
})) {
  test(`tracks that can't be connected are followed by a WebSocket: ${name}`, (t) => {
    const { client, told, last } = setUp(t);
    client.connect();
    const tracks = last();
    fail(tracks);
    assert.equal(FakeSocket.sockets.length, 2);
    assert.equal(tracks.readyState, 3);
    assert.deepEqual(told, [name === 'refused' ? 'no' : 'no answer']);
    assert.deepEqual([last().url, client.status.state], ['ws://here/v1/realtime', 'connecting']);
    assert.deepEqual(last().protocols, ['realtime', 'halfsec.v1']);
    last().tell(GREETING);
    assert.equal(client.usesTracks, false);
    client.appendAudio(new Int16Array(480));
    assert.equal(last().sent[0].type, 'input_audio_buffer.append');
  });
}

test('a call that is ended at the fallback stays so', (t) => {
  const { client, last } = setUp(t);
  client.addEventListener('fallback', () => client.close());
  client.connect();
  last().onclose({ code: 1006, reason: 'no' });
  assert.equal(FakeSocket.sockets.length, 1);
  assert.equal(client.status.state, 'closed');
});

test('tracks that broke are a new call, and a resumption never takes them', (t) => {
  let isWanted = true;
  const { client, told, last } = setUp(t, () => isWanted);
  client.connect();
  last().tell(GREETING);
  last().onclose({ code: 1006, reason: 'gone' });
  assert.deepEqual([client.status.state, client.status.resumable], ['waiting', false]);
  assert.deepEqual(told, []);
  isWanted = false;
  mock.timers.tick(client.status.retryInMs);
  assert.equal(last().url, 'ws://here/v1/realtime');
  last().tell(GREETING);
  last().tell({ type: 'halfsec.session', resume_token: 'resume_1', resume_s: 60 });
  last().onclose({ code: 1006, reason: 'gone' });
  isWanted = true;
  assert.equal(client.willUseTracks, false);
  mock.timers.tick(client.status.retryInMs);
  assert.equal(last().url, 'ws://here/v1/realtime?resume=resume_1');
});

test('push-to-talk over tracks keeps the server from filling up with silence', () => {
  const cleared = [];
  const client = { status: { state: 'open' }, usesTracks: true, clearAudio: () => cleared.push(1) };
  client.withdrawCommit = () => false;
  const uplink = new Uplink(Object.assign(client, { appendAudio: () => true }));
  const pass = (seconds) => {
    for (let i = 0; i < 50 * seconds; i += 1) uplink.add(new Int16Array(480), true);
  };
  pass(300);
  assert.equal(cleared.length, 0, 'with an open microphone turns end by themselves');
  uplink.pushToTalk.enable(true);
  pass(59);
  assert.equal(cleared.length, 0);
  pass(62);
  assert.equal(cleared.length, 2);
  uplink.pushToTalk.press();
  assert.equal(cleared.length, 3);
  pass(300);
  assert.equal(cleared.length, 3, 'a turn that is spoken is left alone');
});

test('a key that is pressed again before its turn was committed goes on with that turn', (t) => {
  const { client, last } = setUp(t);
  const uplink = new Uplink(client);
  const { pushToTalk } = uplink;
  const yielded = [];
  uplink.addEventListener('yielded', ({ detail }) => yielded.push(detail));
  const hold = (ms) => {
    pushToTalk.press();
    for (let held = 0; held < ms; held += 20) uplink.add(new Int16Array(480), true);
    pushToTalk.release();
    uplink.add(new Int16Array(480), true);
  };
  const sent = () => last().sent.splice(0).map(({ type }) => type.replace('input_audio_buffer.', ''));
  pushToTalk.enable(true);
  client.connect();
  last().tell(GREETING);
  for (const againMs of [400, 20]) {
    hold(400);
    assert.deepEqual(sent(), ['clear']);
    mock.timers.tick(100);
    hold(againMs);
    mock.timers.tick(100);
    assert.deepEqual(sent(), [], 'the sentence is neither cleared nor cut');
    mock.timers.tick(1000);
    assert.deepEqual(sent(), ['commit', 'response.create'], `held again for ${againMs} ms`);
  }
  assert.deepEqual(yielded, [true, true, true, true]);
  hold(20);
  mock.timers.tick(1000);
  assert.deepEqual(sent(), ['clear', 'clear'], 'a slip alone is one, as before');
  assert.equal(yielded.at(-1), false);
});

test('a turn that a lost connection took along is not gone on with', (t) => {
  const { client, last } = setUp(t);
  const uplink = new Uplink(client);
  client.connect();
  last().tell(GREETING);
  client.commitAudio();
  last().onclose({ code: 1006, reason: 'gone' });
  mock.timers.tick(client.status.retryInMs);
  last().tell(GREETING);
  uplink.pushToTalk.enable(true);
  uplink.pushToTalk.press();
  assert.deepEqual(last().sent.map(({ type }) => type), ['input_audio_buffer.clear']);
});

// --- the connection ---

class FakeConnection {
  static made = [];

  constructor() {
    FakeConnection.made.push(this);
    this.connectionState = 'new';
    this.localDescription = null;
    this.order = [];
  }

  addTransceiver(track, { direction }) {
    this.order.push(`${track} ${direction}`);
    this.sender = { tracks: [], replaceTrack: async (each) => this.sender.tracks.push(each) };
    return { sender: this.sender };
  }

  createDataChannel(label) {
    this.order.push(label);
    this.channel = { sent: [], bufferedAmount: 7, send: (text) => this.channel.sent.push(text) };
    return this.channel;
  }

  async setLocalDescription() {
    this.localDescription = { sdp: 'v=0 offer' };
  }

  async setRemoteDescription({ type, sdp }) {
    this.order.push(`${type} ${sdp}`);
  }

  close() {
    this.connectionState = 'closed';
    this.order.push('closed');
  }
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

const ANSWER = { status: 201, headers: { Location: '/v1/realtime/calls/rtc_1' } };

function connect(answer, more = {}) {
  FakeConnection.made = [];
  const asked = [];
  const hungUp = [];
  const ended = [];
  const said = [];
  const socket = new PeerSocket({
    url: 'wss://here:8443/v1/realtime?model=cook',
    secret: 'ek_1',
    track: null,
    onStream: () => {},
    hangUp: (path) => hungUp.push(path),
    RTCPeerConnection: FakeConnection,
    fetch: async (url, { method, headers, body }) => {
      asked.push([method, url, headers.get('Content-Type'), headers.get('Authorization'), body]);
      return answer;
    },
    ...more,
  });
  socket.onclose = (end) => ended.push(end);
  socket.onmessage = ({ data }) => said.push(data);
  return { socket, asked, hungUp, ended, said, connection: FakeConnection.made[0] };
}

test('the offer goes to the agent’s calls, its audio before its channel', async () => {
  const { socket, asked, hungUp, said, connection } = connect(new Response('v=0 answer', ANSWER));
  await settled();
  const url = 'https://here:8443/v1/realtime/calls?model=cook';
  assert.deepEqual(asked, [['POST', url, 'application/sdp', 'Bearer ek_1', 'v=0 offer']]);
  assert.deepEqual(connection.order, ['audio sendrecv', 'oai-events', 'answer v=0 answer']);
  assert.equal(socket.readyState, 0);
  connection.channel.onopen();
  assert.equal(socket.readyState, 1);
  assert.equal(socket.bufferedAmount, 7);
  connection.channel.onmessage({ data: '{"type":"session.created"}' });
  socket.send('{"type":"response.create"}');
  socket.replaceTrack('microphone');
  assert.deepEqual(said, ['{"type":"session.created"}']);
  assert.deepEqual(connection.channel.sent, ['{"type":"response.create"}']);
  assert.deepEqual(connection.sender.tracks, ['microphone']);
  socket.close();
  assert.equal(connection.order.at(-1), 'closed');
  assert.deepEqual(hungUp, [], 'the server sees a connection end');
  assert.equal(callsUrl('ws://here/v1/realtime'), 'http://here/v1/realtime/calls');
});

/** An open call whose line the browser has in this state; `pass` lets time go by. */
async function interrupted(t) {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  const made = connect(new Response('v=0 answer', ANSWER));
  const { connection } = made;
  await settled();
  const stats = new Map([
    ['pair', { type: 'candidate-pair', bytesReceived: 700 }],
    ['audio', { type: 'inbound-rtp', bytesReceived: 500 }],
    ['channel', { type: 'data-channel', bytesReceived: 90 }],
    ['microphone', { type: 'outbound-rtp', bytesSent: 0 }],
  ]);
  connection.getStats = async () => stats;
  connection.channel.onopen();
  const become = async (state) => {
    connection.connectionState = state;
    connection.onconnectionstatechange();
    await settled();
  };
  const pass = async (ms) => {
    mock.timers.tick(ms);
    await settled();
  };
  await become('connected');
  return { ...made, stats, become, pass };
}

test('a line that is dead is given up before the browser does, and its call at the server', async (t) => {
  const { become, pass, stats, ended, hungUp, socket, connection } = await interrupted(t);
  await become('disconnected');
  await pass(2900);
  stats.get('microphone').bytesSent += 4000;
  assert.deepEqual([ended, socket.readyState], [[], 1]);
  await pass(200);
  assert.deepEqual(ended, [{ code: 1006, reason: 'the connection broke' }]);
  assert.deepEqual(hungUp, ['/v1/realtime/calls/rtc_1'], 'the server does not see it end');
  assert.equal(connection.order.at(-1), 'closed');
});

test('a stall that passes ends no call', async (t) => {
  const { become, pass, ended } = await interrupted(t);
  for (let i = 0; i < 3; i += 1) {
    await become('disconnected');
    await pass(2000);
    await become('connected');
    await pass(2000);
  }
  assert.deepEqual(ended, []);
});

for (const name of ['pair', 'audio', 'channel']) {
  test(`a line that lets something through is left alone: ${name}`, async (t) => {
    const { become, pass, stats, ended } = await interrupted(t);
    await become('disconnected');
    for (let i = 0; i < 5; i += 1) {
      stats.get(name).bytesReceived += 1;
      await pass(3000);
    }
    assert.deepEqual(ended, []);
    await pass(3000);
    assert.equal(ended.length, 1, 'until nothing comes any more');
  });
}

test('a line is watched no more once it was closed, or where nothing is known of it', async (t) => {
  const { become, pass, ended, hungUp, socket, connection } = await interrupted(t);
  const getStats = connection.getStats;
  connection.getStats = () => Promise.reject(new Error('closed'));
  await become('disconnected');
  await pass(10_000);
  assert.equal(socket.readyState, 1);
  await become('connected');
  connection.getStats = getStats;
  await become('disconnected');
  socket.close();
  await pass(10_000);
  assert.deepEqual([ended, hungUp], [[], []]);
});

test('whoever gives up before the connection is open frees the line', async () => {
  const { socket, hungUp, ended } = connect(new Response('v=0 answer', ANSWER));
  await settled();
  socket.close();
  assert.deepEqual(hungUp, ['/v1/realtime/calls/rtc_1']);
  let answered = () => {};
  const late = new Promise((resolve) => (answered = resolve));
  const second = connect(null, { fetch: () => late });
  await settled();
  second.socket.close();
  assert.deepEqual(second.hungUp, []);
  answered(new Response('v=0 answer', ANSWER));
  await settled();
  assert.deepEqual(second.hungUp, ['/v1/realtime/calls/rtc_1'], 'also when the answer is late');
  assert.deepEqual([...ended, ...second.ended], []);
});

test('why a call failed is said: a refusal, a proxy, a browser, a firewall', async () => {
  const refused = { error: { code: 'webrtc_not_installed', message: 'It needs the extra.' } };
  const reasons = [];
  for (const [answer, more] of [
    [Response.json(refused, { status: 501 }), {}],
    [new Response('<html>', { status: 404 }), {}],
    [null, { RTCPeerConnection: undefined }],
  ]) {
    const { ended } = connect(answer, more);
    await settled();
    assert.deepEqual(ended.map(({ code }) => code), [1006]);
    reasons.push(ended[0].reason);
  }
  const { ended, hungUp, connection } = connect(new Response('v=0 answer', ANSWER));
  await settled();
  connection.connectionState = 'failed';
  connection.onconnectionstatechange();
  connection.channel.onclose();
  assert.equal(ended.length, 1);
  assert.deepEqual(hungUp, ['/v1/realtime/calls/rtc_1']);
  const [installed, proxy, browser] = reasons;
  assert.equal(installed, 'It needs the extra.');
  assert.match(proxy, /status 404/);
  assert.match(browser, /no WebRTC/);
  assert.match(ended[0].reason, /UDP/);
});

test('the error that ends a call becomes its close code; others do not', async () => {
  for (const [code, closeCode] of [
    ['session_ended', 1000],
    ['policy_violation', 1008],
    ['internal_error', 1011],
    ['draining', 1012],
    ['overloaded', 1013],
    ['invalid_event', 1006],
  ]) {
    const { ended, connection } = connect(new Response('v=0 answer', ANSWER));
    await settled();
    connection.channel.onopen();
    const error = { code, message: 'It is over.' };
    connection.channel.onmessage({ data: JSON.stringify({ type: 'error', error }) });
    connection.channel.onclose();
    assert.deepEqual(ended.map((end) => end.code), [closeCode], code);
    if (closeCode !== 1006) assert.equal(ended[0].reason, 'It is over.');
  }
});

// --- what was heard ---

const ADDED = {
  type: 'response.output_item.added',
  response_id: 'resp_1',
  item: { id: 'item_1', type: 'message', role: 'assistant' },
};

test('what was heard is the time since the server began to play, or what it cut', () => {
  const replies = new RemoteReplies();
  const buffer = (what, id = 'resp_1') => ({ type: `output_audio_buffer.${what}`, response_id: id });
  assert.equal(replies.take(ADDED, 0), null);
  assert.equal(replies.isPlaying, false);
  const heard = (playedMs, state) => ({ itemId: 'item_1', playedMs, state });
  assert.deepEqual(replies.take(buffer('started'), 100), heard(0, 'playing'));
  assert.ok(replies.isPlaying);
  assert.deepEqual(replies.progress(350), heard(250, 'playing'));
  assert.equal(replies.take(buffer('stopped', 'resp_0'), 400), null);
  assert.deepEqual(replies.take(buffer('cleared'), 500), heard(400, 'cut'));
  const cut = { type: 'conversation.item.truncated', item_id: 'item_1', audio_end_ms: 420 };
  assert.deepEqual(replies.take(cut, 510), heard(420, 'cut'));
  assert.equal(replies.progress(600), null);
  replies.take(buffer('started'), 1000);
  assert.deepEqual(replies.take(buffer('stopped'), 3000), heard(2000, 'finished'));
  replies.take(buffer('started'), 4000);
  replies.reset();
  assert.equal(replies.isPlaying, false);
  assert.equal(replies.take(buffer('started'), 5000), null, 'of an item that is not known');
});

/** A conversation with a reply that the server plays. */
function talk() {
  const conversation = new Conversation();
  conversation.isRemote = true;
  const shown = [];
  conversation.addEventListener('message', ({ detail }) => shown.push(detail));
  const delta = 'One morning a small brown fox left the wood.';
  conversation.handle(ADDED);
  conversation.handle({ type: 'response.output_audio_transcript.delta', item_id: 'item_1', delta });
  const done = (status) =>
    conversation.handle({ type: 'response.done', response: { status, output: [{ id: 'item_1' }] } });
  const last = () => {
    const { text, sureChars, state } = shown.at(-1);
    return [text.slice(0, sureChars), state];
  };
  return { conversation, delta, done, last };
}

test('a reply that is played by the server is done when it was heard, not when it was made', () => {
  const { conversation, delta, done, last } = talk();
  done('completed');
  assert.deepEqual(last(), ['', 'live']);
  conversation.played('item_1', 700, false);
  const [words, state] = last();
  assert.ok(words.length > 0 && words.length < delta.length, words);
  assert.equal(state, 'live');
  conversation.played('item_1', 3000, true);
  assert.deepEqual(last(), [delta, 'done']);
});

test('a reply that was cut shows the words that the history has, to the end of the call', () => {
  const { conversation, done, last } = talk();
  conversation.played('item_1', 500, false);
  conversation.cut('item_1', 520);
  done('cancelled');
  const content = [{ type: 'output_audio', transcript: 'One morning a small' }];
  const item = { id: 'item_1', role: 'assistant', content };
  conversation.handle({ type: 'conversation.item.retrieved', item });
  assert.deepEqual(last(), ['One morning a small', 'cut']);
  conversation.reset();
  assert.deepEqual(last(), ['One morning a small', 'cut']);
});

test('the preference has three values, and a stored one is kept', () => {
  const items = new Map();
  const storage = {
    getItem: (name) => items.get(name) ?? null,
    setItem: (name, value) => items.set(name, value),
  };
  const store = new PreferenceStore(storage);
  assert.equal(store.now.connection, 'auto');
  store.change({ connection: 'webrtc' });
  store.change({ connection: 'udp' });
  assert.equal(new PreferenceStore(storage).now.connection, 'webrtc');
});

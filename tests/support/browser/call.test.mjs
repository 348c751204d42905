// Calls that are ended while the browser still opens their devices, and calls that are resumed.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { AudioDevices } from '../../../web_demo/audio/audio-devices.js';
import { Call } from '../../../web_demo/call/call.js';
import { PreferenceStore } from '../../../web_demo/call/preferences.js';

/** A connection that is asked for and never made. */
class FakeClient extends EventTarget {
  status = { state: 'closed' };

  numConnects = 0;

  connect() {
    this.numConnects += 1;
  }

  close() {}

  truncated = [];

  truncate(itemId, heardMs) {
    if (this.status.state === 'open') this.truncated.push([itemId, heardMs]);
  }

  send() {}

  reportPlayback() {}

  become(status) {
    this.status = status;
    this.dispatchEvent(new CustomEvent('status', { detail: status }));
  }
}

/** A call whose devices are opened when the test answers. */
function setUp() {
  const client = new FakeClient();
  const call = new Call(client, new PreferenceStore(null));
  const prompts = [];
  const problems = [];
  const ask = () => new Promise((allow, refuse) => prompts.push({ allow, refuse }));
  call.devices.openMicrophone = ask;
  call.devices.playSample = ask;
  call.addEventListener('problem', ({ detail }) => problems.push(detail));
  return { call, client, prompts, problems };
}

for (const action of ['startTalking', 'playSample']) {
  test(`a call that was ended before its devices were open is not connected: ${action}`, async () => {
    for (const answer of ['allow', 'refuse']) {
      const { call, client, prompts, problems } = setUp();
      const starting = call[action]('question.wav');
      await call.end();
      assert.equal(call.phase, 'off');
      prompts[0][answer](new Error('denied'));
      await starting;
      assert.equal(call.phase, 'off');
      assert.equal(client.numConnects, 0);
      assert.deepEqual(problems, []);
    }
  });
}

for (const [action, argument] of [['callAnother', 'ws://other'], ['sendText', 'Hello.']]) {
  test(`a call that was ended while the reply falls silent is not made anew: ${action}`, async () => {
    const { call, client } = setUp();
    let counted = () => {};
    call.devices.open = async () => {};
    call.devices.close = async () => {};
    call.devices.flush = () => new Promise((resolve) => (counted = resolve));
    client.status = { state: 'waiting' };
    const acting = call[action](argument);
    await new Promise((resolve) => setImmediate(resolve));
    await call.end();
    counted([]);
    await acting;
    assert.equal(client.numConnects, 0);
  });
}

test('the next call asks for itself, whatever becomes of the first prompt', async () => {
  const { call, client, prompts } = setUp();
  const first = call.startTalking();
  await call.end();
  const second = call.startTalking();
  prompts[0].allow();
  await first;
  assert.equal(call.phase, 'asking');
  assert.equal(client.numConnects, 0);
  prompts[1].allow();
  await second;
  assert.equal(client.numConnects, 1);
});

test('what was heard of a cut reply is sent once, however long the browser counts', async () => {
  for (const isCountedFirst of [true, false]) {
    const { call, client } = setUp();
    let counted = () => {};
    call.devices.flush = () => new Promise((resolve) => (counted = resolve));
    const settled = () => new Promise((resolve) => setImmediate(resolve));
    for (const heard of [[{ itemId: 'item_1', playedMs: 300 }], []]) {
      client.become({ state: 'waiting', resumable: true });
      if (isCountedFirst) counted(heard);
      await settled();
      client.become({ state: 'open', resumed: true });
      counted(heard);
      await settled();
    }
    assert.deepEqual(client.truncated, [['item_1', 300]]);
  }
});

test('a state that another connection has replaced is not told', async () => {
  const settled = () => new Promise((resolve) => setImmediate(resolve));
  for (const [old, next] of [
    [{ state: 'closed' }, { state: 'connecting' }],
    [{ state: 'waiting', resumable: true }, { state: 'open', resumed: true }],
  ]) {
    const { call, client } = setUp();
    let counted = () => {};
    call.devices.flush = () => new Promise((resolve) => (counted = resolve));
    const told = [];
    call.addEventListener('connection', ({ detail }) => told.push(detail.state));
    client.become(old);
    client.become(next);
    counted([]);
    await settled();
    assert.deepEqual(told, [next.state]);
    client.become(old);
    counted([]);
    await settled();
    assert.deepEqual(told, [next.state, old.state]);
  }
});

class FakeNode extends EventTarget {
  port = { postMessage() {} };

  connect(to) {
    return to;
  }

  disconnect() {}
}

test('no microphone is asked for once the devices were closed', async (t) => {
  const modules = [];
  let numAsked = 0;
  const globals = {
    isSecureContext: true,
    AudioWorkletNode: FakeNode,
    AudioContext: class extends EventTarget {
      sampleRate = 48_000;

      audioWorklet = { addModule: () => new Promise((loaded) => modules.push(loaded)) };

      async resume() {}

      async close() {}
    },
    navigator: { mediaDevices: { getUserMedia: async () => (numAsked += 1) } },
  };
  for (const [name, value] of Object.entries(globals)) {
    const before = Object.getOwnPropertyDescriptor(globalThis, name);
    Object.defineProperty(globalThis, name, { value, configurable: true });
    t.after(() => {
      delete globalThis[name];
      if (before) Object.defineProperty(globalThis, name, before);
    });
  }
  const devices = new AudioDevices();
  const opening = devices.openMicrophone();
  await devices.close();
  for (const loaded of modules) loaded();
  await opening;
  assert.equal(modules.length, 2);
  assert.equal(numAsked, 0);
  assert.equal(devices.hasMicrophone, false);
});

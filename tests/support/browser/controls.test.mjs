// What the page decides about settings, push-to-talk and sleep, without a browser.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { DEFAULTS, isValid, parse, PreferenceStore } from '../../../web_demo/call/preferences.js';
import { problemOfRefusal, PROBLEMS, secureAddresses } from '../../../web_demo/ui/problems.js';
import { PushToTalk, SHORTEST_MS } from '../../../web_demo/call/push-to-talk.js';
import { askWhyRefused } from '../../../web_demo/call/refusal.js';
import { difference } from '../../../web_demo/call/session-settings.js';
import { SleepDetector } from '../../../web_demo/call/sleep-detector.js';

class FakeStorage {
  items = new Map();

  getItem(name) {
    return this.items.get(name) ?? null;
  }

  setItem(name, value) {
    this.items.set(name, value);
  }

  removeItem(name) {
    this.items.delete(name);
  }
}

test('whatever is found in the storage, the preferences make sense', () => {
  for (const text of [null, '', 'null', '[]', '7', '"x"', '{', '{"__proto__": {"turns": "hold"}}']) {
    assert.deepEqual(parse(text), DEFAULTS, text);
  }
  const stored = {
    turns: 'never',
    silenceMs: 31,
    voice: 7,
    noiseSuppression: 'no',
    instructions: 'x'.repeat(65_537),
    key: 'hs_secret',
    agent: 'cook',
  };
  assert.deepEqual(parse(JSON.stringify(stored)), { ...DEFAULTS, agent: 'cook' });
  assert.ok(isValid('silenceMs', 20_000));
  for (const bad of [20_001, 500.5, NaN, '500']) assert.ok(!isValid('silenceMs', bad));
});

test('a change is remembered, told once, and taken back by a reset', () => {
  const storage = new FakeStorage();
  const store = new PreferenceStore(storage);
  const told = [];
  store.addEventListener('change', ({ detail }) => told.push(detail));
  store.change({ voice: 'joe', turns: 'hold' });
  store.change({ voice: 'joe', silenceMs: -1 });
  assert.deepEqual(told, [['voice', 'turns']]);
  assert.equal(new PreferenceStore(storage).now.turns, 'hold');
  store.reset();
  assert.deepEqual(store.now, DEFAULTS);
  assert.equal(storage.items.size, 0);
});

test('two tabs do not take back what the other has changed', () => {
  const storage = new FakeStorage();
  const [first, second] = [new PreferenceStore(storage), new PreferenceStore(storage)];
  first.change({ voice: 'joe' });
  second.change({ turns: 'low' });
  const { voice, turns } = new PreferenceStore(storage).now;
  assert.deepEqual([voice, turns], ['joe', 'low']);
  assert.equal(second.now.voice, '', 'a call in progress keeps its own');
});

test('a storage that is full or forbidden costs the memory, not the page', () => {
  const refusing = {
    getItem() {
      throw new Error('forbidden');
    },
    setItem() {
      throw new Error('full');
    },
    removeItem() {
      throw new Error('forbidden');
    },
  };
  for (const storage of [refusing, null]) {
    const store = new PreferenceStore(storage);
    store.change({ turns: 'hold' });
    store.change({ voice: 'joe' });
    assert.deepEqual([store.now.turns, store.now.voice], ['hold', 'joe']);
    store.reset();
    assert.deepEqual(store.now, DEFAULTS);
  }
});

const SESSION = {
  instructions: 'Be brief.',
  audio: {
    input: { turn_detection: { type: 'semantic_vad', eagerness: 'auto', create_response: true } },
    output: { voice: 'hibari' },
  },
};

test('only what differs from the session is sent', () => {
  const of = (field, changes, session = SESSION, original = SESSION) =>
    difference(field, { ...DEFAULTS, ...changes }, session, original);
  for (const field of ['turns', 'voice', 'instructions']) {
    assert.equal(of(field, {}), null);
    assert.equal(of(field, {}, {}, {}), null, 'a server that does not say is left alone');
  }
  const detection = (turns) => of('turns', { turns, silenceMs: 700 }).audio.input.turn_detection;
  assert.deepEqual(detection('low'), { type: 'semantic_vad', eagerness: 'low' });
  assert.deepEqual(detection('silence'), { type: 'server_vad', silence_duration_ms: 700 });
  assert.equal(detection('hold'), null);
  assert.deepEqual(of('voice', { voice: 'joe' }), { audio: { output: { voice: 'joe' } } });
  assert.deepEqual(of('instructions', { instructions: 'Sing.' }), { instructions: 'Sing.' });
});

test('what is taken back becomes what it was when the call began', () => {
  const now = {
    instructions: 'Sing.',
    audio: { input: { turn_detection: null }, output: { voice: 'joe' } },
  };
  const back = (field) => difference(field, DEFAULTS, now, SESSION);
  assert.deepEqual(back('instructions'), { instructions: 'Be brief.' });
  assert.deepEqual(back('voice'), { audio: { output: { voice: 'hibari' } } });
  assert.deepEqual(back('turns').audio.input.turn_detection, {
    type: 'semantic_vad',
    eagerness: 'auto',
  });
});

function holding(t) {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  const log = [];
  const talk = new PushToTalk({ begin: () => log.push('begin'), end: (said) => log.push(said) });
  const hear = (count) => {
    for (let i = 0; i < count; i += 1) talk.batch(20, () => log.push(20));
  };
  return { talk, log, hear };
}

test('an open microphone sends everything, and no key does anything', (t) => {
  const { talk, log, hear } = holding(t);
  talk.press();
  hear(2);
  talk.release();
  hear(1);
  assert.deepEqual(log, [20, 20, 20]);
});

test('what is said while the key is held is sent, and the batch in which it is let go', (t) => {
  const { talk, log, hear } = holding(t);
  talk.enable(true);
  hear(3);
  talk.press();
  talk.press();
  hear(SHORTEST_MS / 20);
  talk.release();
  talk.release();
  hear(5);
  assert.deepEqual(log, ['begin', ...Array(SHORTEST_MS / 20 + 1).fill(20), true]);
});

test('a slip of the finger is nothing to answer', (t) => {
  const { talk, log, hear } = holding(t);
  talk.enable(true);
  talk.press();
  talk.release();
  hear(3);
  assert.deepEqual(log, ['begin', 20, false]);
});

test('the turn ends although no sound comes any more', (t) => {
  const { talk, log, hear } = holding(t);
  talk.enable(true);
  talk.press();
  hear(50);
  talk.release();
  mock.timers.tick(100);
  assert.equal(log.at(-1), true);
  hear(1);
  assert.equal(log.length, 52);
});

test('pressed again at once, the first turn has ended before the second begins', (t) => {
  const { talk, log, hear } = holding(t);
  talk.enable(true);
  talk.press();
  hear(20);
  talk.release();
  talk.press();
  assert.deepEqual(log.slice(-2), [true, 'begin']);
  mock.timers.tick(1000);
  assert.equal(log.at(-1), 'begin', 'the first timer ends nothing of the second');
  talk.enable(false);
  assert.equal(log.at(-1), false);
});

test('sleep is noticed, by sound or by the timer, and a slow timer is not sleep', (t) => {
  mock.timers.enable({ apis: ['setInterval'] });
  t.after(() => mock.timers.reset());
  let now = 0;
  const woken = [];
  const watch = new SleepDetector((awayMs) => woken.push(awayMs), () => now);
  const later = (ms) => {
    now += ms;
  };
  for (let i = 0; i < 3; i += 1) {
    later(60_000); // as rarely as in a tab in the background
    mock.timers.tick(10_000);
  }
  later(20);
  watch.heard();
  later(20);
  watch.heard();
  assert.deepEqual(woken, []);
  later(30_000);
  watch.heard();
  later(3_600_000);
  mock.timers.tick(10_000);
  later(-3_600_000); // the clock is set back
  watch.heard();
  assert.deepEqual(woken, [30_000, 3_600_000]);
});

test('the reason of a refusal is read where a page can read it', async () => {
  const asked = [];
  const answers = (status, body, headers) => async (path) => {
    asked.push(path);
    return new Response(body, { status, headers });
  };
  const error = JSON.stringify({ error: { code: 'busy', message: 'All lines are busy.' } });
  const url = 'wss://here:8443/v1/realtime?model=cook&resume=secret';
  const busy = answers(503, error, { 'Retry-After': '10' });
  const refusal = { code: 'busy', message: 'All lines are busy.', retryInS: 10 };
  assert.deepEqual(await askWhyRefused(url, busy), refusal);
  assert.deepEqual(asked, ['https://here:8443/v1/realtime?model=cook']);
  const unsaid = await askWhyRefused(url, answers(429, error));
  assert.equal(unsaid.retryInS, null);
  assert.equal(await askWhyRefused(url, answers(426, error)), null);
  assert.equal(await askWhyRefused(url, answers(404, 'Not Found')), null);
  assert.equal(await askWhyRefused(url, () => Promise.reject(new Error('gone'))), null);
});

test('each problem has words and a way out', () => {
  for (const [code, { title, text, label }] of Object.entries(PROBLEMS)) {
    assert.ok(title && text && label, code);
  }
  for (const code of ['busy', 'over_budget', 'rate_limit_exceeded', 'draining', 'whatever']) {
    assert.ok(problemOfRefusal(code) in PROBLEMS, code);
  }
  const words = secureAddresses({ hostname: '10.0.0.5', port: '8080', pathname: '/' });
  assert.match(words, /http:\/\/localhost:8080\/ /);
  assert.match(words, /https:\/\/10\.0\.0\.5:8080\/$/);
  assert.match(words, /--tls-self-signed/);
});

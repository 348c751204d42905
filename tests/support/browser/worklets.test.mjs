// The two worklets as the audio thread runs them, at every rate that devices have.

import assert from 'node:assert/strict';
import { test } from 'node:test';

const WIRE_HZ = 24_000;
const QUANTUM = 128;
const RATES = [8_000, 16_000, 44_100, 48_000, 96_000, 192_000];

const processors = new Map();
globalThis.AudioWorkletProcessor = class {
  port = {
    sent: [],
    postMessage(message) {
      this.sent.push(message);
    },
  };
};
globalThis.registerProcessor = (name, processor) => processors.set(name, processor);
Object.assign(globalThis, { sampleRate: WIRE_HZ, currentTime: 0, currentFrame: 0 });
await import('../../../web_demo/audio/capture-worklet.js');
await import('../../../web_demo/audio/playback-worklet.js');

function make(name, rateHz) {
  globalThis.sampleRate = rateHz;
  const Processor = processors.get(name);
  return new Processor();
}

function tone(length, rateHz) {
  return Float32Array.from({ length }, (_, i) => 0.5 * Math.sin((2 * Math.PI * 440 * i) / rateHz));
}

for (const rateHz of RATES) {
  test(`a microphone at ${rateHz} Hz arrives as 20 ms batches of the same sound`, () => {
    const capture = make('capture', rateHz);
    const sound = tone(rateHz, rateHz);
    for (let at = 0; at + QUANTUM <= sound.length; at += QUANTUM) {
      capture.process([[sound.subarray(at, at + QUANTUM)]]);
    }
    const batches = capture.port.sent;
    assert.ok(batches.length >= 48 && batches.length <= 50, `${batches.length}`);
    const expected = tone(WIRE_HZ, WIRE_HZ);
    batches.forEach(({ pcm, level }, number) => {
      assert.equal(pcm.length, WIRE_HZ / 50);
      if (number === 0) return; // before the first sample there was silence
      assert.ok(Math.abs(level - 0.5 / Math.SQRT2) < 0.01);
      pcm.forEach((sample, i) => {
        const error = sample / 32768 - expected[number * pcm.length + i];
        assert.ok(Math.abs(error) < 3e-3, `batch ${number}, sample ${i}: ${error}`);
      });
    });
  });

  test(`nobody connected at ${rateHz} Hz is silence, as long as it lasts`, () => {
    const capture = make('capture', rateHz);
    for (let at = 0; at < rateHz; at += QUANTUM) capture.process([[]]);
    assert.ok(capture.port.sent.length >= 48);
    assert.ok(capture.port.sent.every(({ pcm, level }) => level === 0 && pcm.every((x) => x === 0)));
  });

  test(`a flush at ${rateHz} Hz is silent within 50 ms, and counts what was heard`, () => {
    const playback = make('playback', rateHz);
    const tell = (data) => playback.port.onmessage({ data });
    tell({ push: tone(rateHz, rateHz), itemId: 'reply' });
    const heard = [];
    const pull = () => {
      const outputs = [new Float32Array(QUANTUM), new Float32Array(QUANTUM)];
      playback.process([], [outputs]);
      assert.deepEqual(outputs[0], outputs[1]);
      heard.push(...outputs[0]);
    };
    while (heard.length < rateHz / 4) pull();
    const flushedAt = heard.length;
    tell({ flush: 7 });
    while (heard.length < flushedAt + rateHz / 10) pull();
    const last = heard.findLastIndex((sample) => sample !== 0);
    assert.ok(last - flushedAt < 0.05 * rateHz, `${last - flushedAt} samples`);
    const { items } = playback.port.sent.find(({ flushed }) => flushed === 7);
    assert.deepEqual(items, [{ itemId: 'reply', played: items[0].played }]);
    assert.ok(Math.abs(items[0].played - (last + 1)) <= 2, 'a sine may end in a zero');
  });
}

test('a gap just before the end of a reply is counted when it ends', () => {
  const playback = make('playback', 48_000);
  const tell = (data) => playback.port.onmessage({ data });
  const pull = () => playback.process([], [[new Float32Array(QUANTUM), new Float32Array(QUANTUM)]]);
  tell({ push: tone(1_000, 48_000), itemId: 'reply' });
  for (let number = 0; number < 10; number += 1) pull();
  tell({ push: tone(100, 48_000), itemId: 'reply' });
  tell({ end: 'reply' });
  pull();
  const [finished, ...others] = playback.port.sent.filter((each) => !each.output);
  assert.deepEqual(others, []);
  assert.deepEqual(finished, {
    finished: [{ itemId: 'reply', played: 1_100 }],
    underruns: 1,
    dropped: 0,
  });
});

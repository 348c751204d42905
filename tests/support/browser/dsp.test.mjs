// Resampler and playback ring, the parts of the page that run in the audio thread.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { DUCKED_GAIN, Gain } from '../../../web_demo/audio/gain.js';
import { HeardText } from '../../../web_demo/call/heard-text.js';
import { PlaybackBuffer } from '../../../web_demo/audio/playback-buffer.js';
import { Resampler } from '../../../web_demo/audio/resampler.js';

const RATES = [
  [48000, 24000],
  [44100, 24000],
  [16000, 24000],
  [24000, 24000],
  [24000, 48000],
  [24000, 44100],
  [96000, 24000],
];

/** A small generator, so that every run cuts the stream at the same places. */
function lcg(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function noise(length, seed = 1) {
  const random = lcg(seed);
  return Float32Array.from({ length }, () => random() * 2 - 1);
}

function sine(length, rateHz, hz) {
  return Float32Array.from({ length }, (_, i) => Math.sin((2 * Math.PI * hz * i) / rateHz));
}

function concat(parts) {
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function resampleWhole(from, to, input) {
  const resampler = new Resampler(from, to);
  return concat([resampler.process(input), resampler.flush()]);
}

for (const [from, to] of RATES) {
  test(`${from} to ${to}: the cut of the stream changes no bit`, () => {
    const input = noise(5000);
    const whole = resampleWhole(from, to, input);
    const random = lcg(7);
    for (const size of [() => 1, () => 128, () => Math.floor(random() * 400)]) {
      const resampler = new Resampler(from, to);
      const parts = [];
      for (let at = 0; at < input.length; ) {
        const count = size();
        parts.push(resampler.process(input.subarray(at, at + count)));
        at += count;
      }
      parts.push(resampler.flush());
      assert.deepEqual(concat(parts), whole);
    }
  });

  test(`${from} to ${to}: length and time axis are kept`, () => {
    for (const length of [0, 1, 479, 4800]) {
      const output = resampleWhole(from, to, new Float32Array(length));
      assert.equal(output.length, Math.ceil((length * to) / from));
    }
    const output = resampleWhole(from, to, sine(9600, from, 440));
    const expected = sine(output.length, to, 440);
    for (let i = 200; i < output.length - 200; i += 1) {
      assert.ok(Math.abs(output[i] - expected[i]) < 2e-3, `sample ${i}`);
    }
  });
}

test('what the lower rate cannot carry is removed, not folded back', () => {
  const output = resampleWhole(48000, 24000, sine(9600, 48000, 15000));
  const loudest = Math.max(...output.subarray(200, -200).map(Math.abs));
  assert.ok(loudest < 1e-3, `${loudest}`);
});

test('a resampler can be used again after flush', () => {
  const resampler = new Resampler(44100, 24000);
  const input = noise(1000);
  const first = concat([resampler.process(input), resampler.flush()]);
  const second = concat([resampler.process(input), resampler.flush()]);
  assert.deepEqual(first, second);
});

test('a rate that is no rate is refused', () => {
  assert.throws(() => new Resampler(0, 24000), RangeError);
  assert.throws(() => new Resampler(48000, NaN), RangeError);
});

const LIMITS = { capacity: 1000, fade: 16, startCushion: 100, resumeCushion: 200 };

function pull(ring, length) {
  const output = new Float32Array(length);
  const finished = ring.pull(output);
  return { output, finished };
}

test('samples come out as they went in, across the seam of the ring', () => {
  const ring = new PlaybackBuffer(LIMITS);
  const input = noise(5000);
  const parts = [];
  for (let at = 0; at < input.length; at += 250) {
    ring.push('a', input.subarray(at, at + 250));
    while (ring.waiting > 128) parts.push(pull(ring, 128).output);
  }
  const played = concat(parts);
  assert.deepEqual(played, input.subarray(0, played.length));
  assert.equal(ring.dropped, 0);
});

test('flush leaves a short fade and nothing else, and counts it', () => {
  const ring = new PlaybackBuffer(LIMITS);
  ring.push('a', new Float32Array(900).fill(1));
  pull(ring, 128);
  const cut = ring.flush();
  assert.deepEqual(cut, [{ itemId: 'a', played: 128 + LIMITS.fade }]);
  const after = concat([pull(ring, 128).output, pull(ring, 128).output]);
  for (let i = 1; i < LIMITS.fade; i += 1) assert.ok(after[i] < after[i - 1]);
  assert.ok(after.subarray(LIMITS.fade).every((sample) => sample === 0));
  assert.deepEqual(ring.flush(), []);
});

test('a reply after a flush is played whole', () => {
  const ring = new PlaybackBuffer(LIMITS);
  ring.push('a', new Float32Array(500).fill(1));
  pull(ring, 128);
  ring.flush();
  ring.push('b', new Float32Array(150).fill(0.5));
  ring.end('b');
  const { output } = pull(ring, 128);
  assert.ok(output.subarray(LIMITS.fade).every((sample) => sample === 0.5));
  const { finished } = pull(ring, 128);
  assert.deepEqual(finished, [{ itemId: 'b', played: 150 }]);
});

test('a reply that is not playing yet is flushed with nothing heard', () => {
  const ring = new PlaybackBuffer(LIMITS);
  ring.push('a', new Float32Array(50).fill(1));
  assert.deepEqual(ring.flush(), [{ itemId: 'a', played: 0 }]);
  assert.ok(pull(ring, 128).output.every((sample) => sample === 0));
});

test('a short reply starts below the cushion once it is known to be complete', () => {
  const ring = new PlaybackBuffer(LIMITS);
  ring.push('a', new Float32Array(50).fill(1));
  assert.equal(pull(ring, 128).output[0], 0);
  ring.end('a');
  const { output, finished } = pull(ring, 128);
  assert.equal(output[0], 1);
  assert.deepEqual(finished, [{ itemId: 'a', played: 50 }]);
});

test('an underrun fades out, waits for a cushion and fades in', () => {
  const ring = new PlaybackBuffer(LIMITS);
  ring.push('a', new Float32Array(100).fill(1));
  const dry = pull(ring, 128).output;
  assert.ok(dry[100] < 1 && dry[100] > 0 && dry[100 + LIMITS.fade] === 0);
  assert.equal(ring.underruns, 1);
  ring.push('a', new Float32Array(150).fill(1));
  assert.ok(pull(ring, 128).output.every((sample) => sample === 0));
  ring.push('a', new Float32Array(50).fill(1));
  const { output } = pull(ring, 128);
  assert.equal(output[0], 0);
  assert.equal(output[LIMITS.fade], 1);
  assert.deepEqual(ring.progress(), [{ itemId: 'a', played: 228 }]);
});

test('two replies are counted apart', () => {
  const ring = new PlaybackBuffer(LIMITS);
  ring.push('a', new Float32Array(200).fill(1));
  ring.end('a');
  ring.push('b', new Float32Array(300).fill(1));
  const { finished } = pull(ring, 256);
  assert.deepEqual(finished, [{ itemId: 'a', played: 200 }]);
  assert.deepEqual(ring.progress(), [{ itemId: 'b', played: 56 }]);
});

test('a ring that is full drops what is new and counts it', () => {
  const ring = new PlaybackBuffer(LIMITS);
  ring.push('a', new Float32Array(900));
  ring.push('a', new Float32Array(300));
  assert.equal(ring.waiting, 1000);
  assert.equal(ring.dropped, 200);
});

test('any order of pushes, pulls and flushes accounts for every sample', () => {
  const random = lcg(3);
  for (let round = 0; round < 200; round += 1) {
    const ring = new PlaybackBuffer(LIMITS);
    let pushed = 0;
    let played = 0;
    let lost = 0;
    for (let step = 0; step < 60; step += 1) {
      const dice = random();
      const itemId = `item${Math.floor(random() * 3)}`;
      if (dice < 0.5) {
        const count = Math.floor(random() * 300);
        ring.push(itemId, new Float32Array(count));
        pushed += count;
      } else if (dice < 0.9) {
        for (const item of pull(ring, 128).finished) played += item.played;
      } else if (dice < 0.95) {
        ring.end(itemId);
      } else {
        const faded = ring.playing ? Math.min(LIMITS.fade, ring.waiting) : 0;
        lost += ring.waiting - faded;
        for (const item of ring.flush()) played += item.played;
      }
    }
    for (const item of ring.progress()) played += item.played;
    assert.equal(pushed, ring.dropped + ring.waiting + lost + played);
  }
});

test('heard words follow the audio and end at word borders', () => {
  const words = new HeardText();
  words.addText('Hello there, ');
  words.addAudio(1000);
  words.addText('how are you?');
  words.addAudio(1000);
  assert.equal(words.charsAt(0), 0);
  assert.equal(words.text.slice(0, words.charsAt(300)), 'Hello');
  assert.equal(words.text.slice(0, words.charsAt(1000)), 'Hello there, ');
  assert.equal(words.text.slice(0, words.charsAt(1400)), 'Hello there, how are');
  assert.equal(words.charsAt(2000), words.text.length);
  assert.equal(words.charsAt(9999), words.text.length);
  let last = 0;
  for (let ms = 0; ms <= 2000; ms += 10) {
    assert.ok(words.charsAt(ms) >= last);
    last = words.charsAt(ms);
  }
});

test('a voice is ducked within 20 ms and comes back within 100, without a step', () => {
  const gain = new Gain(48000);
  const heard = (count, ducked) => {
    const samples = new Float32Array(count).fill(1);
    gain.apply(samples, ducked);
    return samples;
  };
  const before = heard(128, false);
  assert.ok(before.every((sample) => sample === 1));
  const fall = concat([heard(128, true), heard(896, true)]);
  assert.ok(Math.abs(fall[960] - DUCKED_GAIN) < 1e-6);
  assert.ok(fall[900] > DUCKED_GAIN);
  const rise = heard(4900, false);
  assert.equal(rise[4899], 1);
  assert.ok(rise[4700] < 1);
  const whole = concat([before, fall, rise]);
  for (let i = 1; i < whole.length; i += 1) assert.ok(Math.abs(whole[i] - whole[i - 1]) < 1e-3);
});

test('a voice that is called back halfway turns around where it is', () => {
  const gain = new Gain(48000);
  gain.apply(new Float32Array(480), true);
  const level = gain.level;
  assert.ok(level > DUCKED_GAIN && level < 1);
  gain.apply(new Float32Array(1), false);
  assert.ok(gain.level > level && gain.level - level < 1e-3);
});

test('the ring says whose samples come next', () => {
  const ring = new PlaybackBuffer({ capacity: 100, fade: 2, startCushion: 1, resumeCushion: 1 });
  assert.equal(ring.current, '');
  ring.push('a', new Float32Array(4));
  ring.push('b', new Float32Array(4));
  assert.equal(ring.current, 'a');
  ring.pull(new Float32Array(4));
  assert.equal(ring.current, 'b');
  ring.flush();
  assert.equal(ring.current, '');
});

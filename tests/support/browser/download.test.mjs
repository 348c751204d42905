// What a call is downloaded as: recording, transcript, and the output recorder.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { BLOCK_FRAMES, CallRecording, wavHeader } from '../../../web_demo/audio/call-recording.js';
import { OutputRecorder } from '../../../web_demo/audio/output-recorder.js';
import { transcriptText } from '../../../web_demo/call/transcript-text.js';

const BLOCK_MS = BLOCK_FRAMES / 24;

/** The samples of a file: [left, right] of each frame. */
async function framesOf(recording) {
  const bytes = await recording.file().arrayBuffer();
  const header = new DataView(bytes, 0, 44);
  assert.equal(header.getUint32(4, true), bytes.byteLength - 8);
  assert.equal(header.getUint32(40, true), bytes.byteLength - 44);
  const samples = new Int16Array(bytes, 44);
  return Array.from({ length: samples.length / 2 }, (_, i) => [samples[2 * i], samples[2 * i + 1]]);
}

function constant(value, length) {
  return new Int16Array(length).fill(value);
}

test('the header is that of stereo, 16 bit, 24 kHz', () => {
  const header = new DataView(wavHeader(4000));
  const text = (at) => String.fromCharCode(...new Uint8Array(header.buffer, at, 4));
  assert.deepEqual([0, 8, 12, 36].map(text), ['RIFF', 'WAVE', 'fmt ', 'data']);
  assert.equal(header.byteLength, 44);
  assert.equal(header.getUint16(20, true), 1);
  assert.equal(header.getUint16(22, true), 2);
  assert.equal(header.getUint32(24, true), 24_000);
  assert.equal(header.getUint32(28, true), 96_000);
  assert.equal(header.getUint16(32, true), 4);
  assert.equal(header.getUint16(34, true), 16);
});

test('each side stands where it belongs, over the edges of blocks too', async () => {
  const recording = new CallRecording();
  recording.write('caller', constant(1, 480), 0);
  recording.write('caller', constant(2, 480), 20.4); // a hair late: it goes on without a gap
  recording.write('agent', constant(7, 480), BLOCK_MS - 10);
  recording.write('caller', constant(3, 480), 100);
  const frames = await framesOf(recording);
  assert.equal(frames.length, BLOCK_FRAMES + 240);
  assert.deepEqual(frames[479], [1, 0]);
  assert.deepEqual(frames[480], [2, 0]);
  assert.deepEqual(frames[960], [0, 0]);
  assert.deepEqual(frames[2400], [3, 0]);
  assert.deepEqual(frames[BLOCK_FRAMES - 241], [0, 0]);
  assert.deepEqual(frames[BLOCK_FRAMES - 240], [0, 7]);
  assert.deepEqual(frames.at(-1), [0, 7]);
});

test('a long silence takes no room, and what follows stands in its place', async () => {
  const recording = new CallRecording();
  recording.write('caller', constant(1, 480), 0);
  recording.write('caller', constant(0, 480), 20);
  recording.write('agent', constant(2, 480), 10 * BLOCK_MS);
  assert.equal(recording.blocks.size, 2);
  const frames = await framesOf(recording);
  assert.equal(frames.length, 10 * BLOCK_FRAMES + 480);
  assert.deepEqual(frames[10 * BLOCK_FRAMES], [0, 2]);
});

test('the oldest sound goes when there is too much, and little of it is in memory', async () => {
  const recording = new CallRecording(4 * BLOCK_FRAMES * 4);
  for (let ms = 0; ms < 7 * BLOCK_MS; ms += 20) recording.write('caller', constant(5, 480), ms);
  assert.equal(recording.hasForgotten, true);
  assert.equal(recording.startMs, 3 * BLOCK_MS);
  const open = [...recording.blocks.values()].filter((block) => !(block instanceof Blob));
  assert.equal(open.length, 2);
  const frames = await framesOf(recording);
  assert.equal(frames.length, 4 * BLOCK_FRAMES);
  assert.ok(frames.every(([left, right]) => left === 5 && right === 0));
});

test('the output recorder emits all audible samples once, with their position', () => {
  const pieces = [];
  const recorder = new OutputRecorder(512, (samples, frame) => pieces.push([samples.length, frame]));
  const loud = new Float32Array(128).fill(0.5);
  const silent = new Float32Array(128);
  for (let i = 0; i < 6; i += 1) recorder.take(loud, 1000 + 128 * i);
  assert.deepEqual(pieces, [[512, 1000]]);
  recorder.take(silent, 1768);
  recorder.take(silent, 1896);
  recorder.take(loud, 2024);
  recorder.take(silent, 2152);
  assert.deepEqual(pieces, [
    [512, 1000],
    [256, 1512],
    [128, 2024],
  ]);
});

test('a transcript says who said what when, and what was not heard', () => {
  const message = (role, text, sureChars = text.length, state = 'done') => ({
    ...{ itemId: text, role, text, sureChars, state },
  });
  const line = (atMs, made, waitMs = null) => ({ atMs, message: made, note: '', waitMs });
  const text = transcriptText(
    {
      beganAt: new Date(0),
      sessions: ['sess_a', 'sess_b'],
      hasForgotten: true,
      lines: [
        line(61_250, message('caller', 'Is 2 * 3 <b>six</b>?\nYes?')),
        line(62_000, message('agent', 'It is six indeed.', 9, 'cut'), 412.4),
        line(62_500, message('caller', '', 0, 'failed')),
        { atMs: 63_000, message: null, note: 'Tool clock: done after 7 ms.', waitMs: null },
        line(3_600_000, message('agent', 'Well', 2, 'live')),
      ],
    },
    5000,
  );
  assert.match(text, /Session: sess_a, sess_b/);
  assert.match(text, /The recording begins at 00:05\.0\./);
  assert.match(text, /The beginning is missing/);
  assert.deepEqual(
    text.split('\n').filter((each) => each.startsWith('- ')),
    [
      '- 01:01.2 **You**: Is 2 \\* 3 \\<b\\>six\\</b\\>? Yes?',
      '- 01:02.0 **Agent** (after 412 ms): It is six ~~indeed.~~ (interrupted)',
      '- 01:03.0 *Tool clock: done after 7 ms.*',
      '- 60:00.0 **Agent**: Well …',
    ],
  );
});

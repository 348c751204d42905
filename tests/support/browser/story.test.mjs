// Views of a call: the running turn, words as they are played, first audible samples.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { FirstSound } from '../../../web_demo/audio/first-sound.js';
import { HeardText } from '../../../web_demo/call/heard-text.js';
import { ToolCalls, toolText } from '../../../web_demo/ui/tool-calls.js';
import { TurnTiming } from '../../../web_demo/call/turn-timing.js';

/** The page's clock is ahead of the server's by this much, and by the way there. */
const AHEAD_MS = 50_000;

/** Tells marks as a server does: [turn, name, at, now], some ms on their way. */
function tell(turns, ...marks) {
  for (const [turn, name, at_ms, now_ms = at_ms, wayMs = 0] of marks) {
    turns.take({ turn, name, at_ms, now_ms }, now_ms + AHEAD_MS + wayMs);
  }
}

/** A pause with words, and the reply that is prepared in it: none of it has a number. */
const PAUSE = [
  [null, 'speech_started', 100],
  [null, 'speech_paused', 1085],
  [null, 'asr_start', 1090],
  [null, 'asr_final', 1160, 1162],
  [null, 'caller_last_voiced', 1000, 1162],
  [null, 'audio_received', 1008, 1162],
  [null, 'reply_requested', 1165],
  [null, 'llm_first_token', 1200],
];

function rounded(stretches) {
  return stretches.map(({ stage, fromMs, toMs }) => [stage, Math.round(fromMs), Math.round(toMs)]);
}

test('a bar begins where the caller ended, at the time that has passed already', () => {
  const turns = new TurnTiming();
  tell(turns, ...PAUSE.slice(0, 4));
  assert.equal(turns.at(AHEAD_MS + 1162), null);
  tell(turns, ...PAUSE.slice(4, 6));
  const shown = turns.at(AHEAD_MS + 1162);
  assert.equal(shown.elapsedMs, 162);
  assert.equal(shown.stage, 'endpoint');
  assert.equal(shown.heard, false);
  assert.deepEqual(rounded(shown.waited), [
    ['capture', 0, 8],
    ['endpoint', 8, 162],
  ]);
  assert.deepEqual(rounded(shown.ahead), [['asr', 90, 160]]);
});

test('what is prepared ahead does not end the wait for the end of the turn', () => {
  const turns = new TurnTiming();
  tell(turns, ...PAUSE, [null, 'first_piece', 1240], [null, 'tts_start', 1241]);
  const shown = turns.at(AHEAD_MS + 1300);
  assert.deepEqual(rounded(shown.waited), [
    ['capture', 0, 8],
    ['endpoint', 8, 300],
  ]);
  assert.deepEqual(rounded(shown.ahead), [
    ['asr', 90, 160],
    ['llm_prefill', 165, 200],
    ['llm_clause', 200, 240],
    ['tts', 241, 300],
  ]);
});

test('the stretches follow each other without a gap up to the first sound', () => {
  const turns = new TurnTiming();
  tell(
    turns,
    ...PAUSE,
    [null, 'endpoint', 1440],
    [1, 'first_piece', 1500],
    [1, 'tts_start', 1501],
    [1, 'first_audible_ready', 1530],
    [1, 'released', 1534],
  );
  assert.equal(turns.at(AHEAD_MS + 1540).stage, 'transport');
  turns.heard(AHEAD_MS + 1560);
  const shown = turns.at(AHEAD_MS + 9999);
  assert.equal(shown.heard, true);
  assert.equal(shown.elapsedMs, 560);
  assert.deepEqual(rounded(shown.waited), [
    ['capture', 0, 8],
    ['endpoint', 8, 440],
    ['llm_clause', 440, 500],
    ['tts', 500, 530],
    ['pacing', 530, 534],
    ['transport', 534, 560],
  ]);
});

test('where only the words were missing, they were waited for', () => {
  const turns = new TurnTiming();
  tell(turns, ...PAUSE.slice(0, 3), [null, 'asr_final', 1500], [null, 'endpoint', 1500.4]);
  tell(turns, [null, 'caller_last_voiced', 1000, 1501], [null, 'audio_received', 1008, 1501]);
  tell(turns, [1, 'reply_requested', 1502]);
  const shown = turns.at(AHEAD_MS + 1600);
  assert.deepEqual(rounded(shown.waited), [
    ['capture', 0, 8],
    ['endpoint', 8, 90],
    ['asr', 90, 500],
    ['llm_prefill', 500, 600],
  ]);
  assert.deepEqual(shown.ahead, []);
});

test('a caller who goes on takes the bar away, and the next pause brings another', () => {
  const turns = new TurnTiming();
  tell(turns, ...PAUSE, [null, 'void', 1300]);
  assert.equal(turns.at(AHEAD_MS + 1310), null);
  tell(turns, [null, 'discarded', 1300], [null, 'first_piece', 1310]); // work that had not stopped
  assert.equal(turns.at(AHEAD_MS + 1320), null);
  tell(turns, [null, 'speech_paused', 2085], [null, 'caller_last_voiced', 2000, 2150]);
  assert.equal(turns.at(AHEAD_MS + 2150).elapsedMs, 150);
});

test('marks that were held up on their way do not move the clock', () => {
  const turns = new TurnTiming();
  tell(turns, [null, 'speech_started', 100, 100, 3], [null, 'speech_paused', 1085, 1085, 800]);
  tell(turns, [null, 'caller_last_voiced', 1000, 1162, 5]);
  assert.equal(turns.at(AHEAD_MS + 1200).elapsedMs, 197);
});

test('tools are waited for in their own colour, and what follows them in its', () => {
  const turns = new TurnTiming();
  tell(
    turns,
    ...PAUSE,
    [null, 'endpoint', 1250],
    [1, 'tool_start', 1300],
    [1, 'tool_start', 1310],
    [1, 'tool_done', 1320],
  );
  assert.equal(turns.at(AHEAD_MS + 1340).stage, 'tool');
  tell(turns, [1, 'tool_done', 1350], [1, 'reply_requested', 1351], [1, 'llm_first_token', 1380]);
  assert.deepEqual(rounded(turns.at(AHEAD_MS + 1400).waited).slice(2), [
    ['llm_prefill', 250, 300],
    ['tool', 300, 350],
    ['llm_prefill', 350, 380],
    ['llm_clause', 380, 400],
  ]);
});

test('a written turn begins with the message; a greeting has nobody who waits', () => {
  const turns = new TurnTiming();
  tell(turns, [1, 'asked', 500], [1, 'reply_requested', 500], [1, 'llm_first_token', 560]);
  assert.deepEqual(rounded(turns.at(AHEAD_MS + 600).waited), [
    ['llm_prefill', 0, 60],
    ['llm_clause', 60, 100],
  ]);
  turns.over(1);
  assert.equal(turns.at(AHEAD_MS + 600), null);
  tell(turns, [2, 'greeting', 700], [2, 'reply_requested', 700]);
  assert.equal(turns.at(AHEAD_MS + 800), null);
});

test('a reply that is taken back or cut before it is heard leaves no bar', () => {
  for (const end of [
    [null, 'reopened', 1500],
    [1, 'interrupted', 1500],
  ]) {
    const turns = new TurnTiming();
    tell(turns, ...PAUSE, [null, 'endpoint', 1400], [1, 'first_piece', 1450], end);
    assert.equal(turns.at(AHEAD_MS + 1510), null, end[1]);
  }
});

test('nothing runs for ever', () => {
  const turns = new TurnTiming();
  tell(turns, ...PAUSE);
  assert.equal(turns.at(AHEAD_MS + 1000 + 60_000), null);
});

test('a piece whose audio is still coming is not taken for heard', () => {
  const words = new HeardText();
  const text = 'A sentence that takes about three seconds to say.';
  words.addText(text);
  words.addAudio(450); // as far as the server runs ahead
  const early = text.slice(0, words.charsAt(400));
  assert.ok(['A', 'A sentence'].includes(early), early);
  for (let ms = 450; ms < 3000; ms += 100) words.addAudio(100);
  words.complete();
  assert.equal(words.charsAt(words.audioMs), text.length);
});

test('a slow voice is known by its first piece', () => {
  const words = new HeardText();
  words.addText('Ten chars ');
  words.addAudio(2000); // 200 ms a letter
  words.addText('and twenty more of them.');
  words.addAudio(400);
  assert.equal(words.text.slice(0, words.charsAt(2300)), 'Ten chars and');
});

test('the first sound is the first sample that is audible, and is reported once', () => {
  const sounds = new FirstSound();
  const silence = new Float32Array(2400);
  const voice = silence.map((_, index) => (index < 1200 ? 0.005 : 0.5));
  sounds.arrived('a', silence);
  assert.equal(sounds.played('a', 90, 1000), null);
  sounds.arrived('a', voice); // from 150 ms on
  assert.equal(sounds.played('a', 140, 1050), null);
  assert.equal(sounds.played('a', 190, 1100), 1060);
  assert.equal(sounds.played('a', 240, 1150), null);
  assert.equal(sounds.played('unheard of', 240, 1150), null);
});

test('tool calls are described in words', () => {
  const tool = { item_id: 'a', name: 'weather', state: 'started', ms: 0 };
  assert.equal(toolText(tool), 'Looking that up: weather …');
  assert.equal(toolText({ ...tool, state: 'done', ms: 120 }), 'Looking that up: weather … done, 120 ms');
  assert.equal(
    toolText({ ...tool, state: 'failed', ms: 5049 }),
    'Looking that up: weather … failed, 5.0 s',
  );
  assert.equal(
    toolText({ ...tool, state: 'cancelled', ms: 40 }),
    'Looking that up: weather … cancelled',
  );
});

test('of the tools on a lost line those in the background go on', () => {
  /** @type {{dataset: {state?: string}, textContent: string}[]} */
  const lines = [];
  const transcript = {
    addLine: () => lines[lines.push({ dataset: {}, textContent: '' }) - 1],
    announce: () => {},
  };
  const tools = new ToolCalls(/** @type {any} */ (transcript));
  const states = () => lines.map((line) => line.dataset.state);
  tools.show({ item_id: 'a', name: 'weather', state: 'started', ms: 0 });
  for (const item_id of ['b', 'c']) {
    tools.show({ item_id, name: 'flights', state: 'started', ms: 0 });
    tools.show({ item_id, name: 'flights', state: 'background', ms: 0 });
  }
  tools.leave(true);
  assert.deepEqual(states(), ['cancelled', 'background', 'background']);
  tools.show({ item_id: 'b', name: 'flights', state: 'done', ms: 9000 });
  assert.deepEqual(states(), ['cancelled', 'done', 'background']);
  tools.leave(false);
  assert.deepEqual(states(), ['cancelled', 'done', 'cancelled']);
});

/** Ties the page's elements to a call. What is decided here is only what to show. */

import { Access } from './access.js';
import { Call } from './call.js';
import { KeyDialog } from './key-dialog.js';
import { Notice } from './notice.js';
import { problemOfClose, PROBLEMS } from './problems.js';
import { ReadinessWatch } from './readiness.js';
import { defaultUrl, RealtimeClient } from './realtime.js';
import { Transcript } from './transcript.js';

/**
 * @typedef {import('./call.js').Phase} Phase
 * @typedef {import('./readiness.js').Readiness} Readiness
 * @typedef {import('./realtime.js').Status} Status
 */

/** @type {Record<Phase, string>} */
const PHASE_TEXT = {
  off: 'Press and talk',
  asking: 'Allow the microphone, please',
  connecting: 'Connecting',
  ready: 'On the line',
  listening: 'Listening: go ahead',
  hearing: 'Listening',
  thinking: 'Thinking',
  speaking: 'Speaking: interrupt at any time',
};

const SERVER_PROBLEMS = new Set([
  'connection-broke',
  'server-gone',
  'server-restarting',
  'server-full',
  'not-admitted',
]);

/** "What should I cook for dinner tonight?", spoken by hibari (Apache-2.0), 24 kHz. */
const SAMPLE_URL = 'sample-question.wav';

/** Refresh of the figures under "About this call". */
const FIGURES_EVERY_MS = 250;

const page = {
  scroller: byId('scroller'),
  transcript: byId('transcript'),
  announcer: byId('announcer'),
  talk: /** @type {HTMLButtonElement} */ (byId('talk')),
  talkLabel: byId('talk-label'),
  phase: byId('phase'),
  server: byId('server'),
  sample: /** @type {HTMLButtonElement} */ (byId('sample')),
  form: /** @type {HTMLFormElement} */ (byId('write')),
  text: /** @type {HTMLInputElement} */ (byId('text')),
  notice: byId('notice'),
  figures: byId('figures'),
};

const keyDialog = new KeyDialog(/** @type {HTMLDialogElement} */ (byId('key-dialog')));
const access = new Access(askForKey);
const call = new Call(new RealtimeClient(defaultUrl(), { getSecret: () => access.secret() }));
const transcript = new Transcript(page.scroller, page.transcript, page.announcer);
const notice = new Notice(page.notice, act);
const watch = new ReadinessWatch(showReadiness);
let serverWasDown = false;

/** @param {import('./problems.js').Action} action */
function act(action) {
  if (action === 'talk') void call.startTalking();
  if (action === 'resume') void call.devices.resume();
  if (action === 'reconnect') reconnect();
}

/**
 * @param {string} problem with the key that was given before
 * @returns {Promise<string>}
 */
async function askForKey(problem) {
  try {
    return await keyDialog.ask(problem);
  } catch (error) {
    void call.end(); // and nothing is tried again
    throw error;
  }
}

function reconnect() {
  if (call.client.status.state === 'waiting') call.client.connect();
  else watch.start();
}

/** @param {Readiness} readiness */
function showReadiness(readiness) {
  page.server.dataset.state = readiness.ready ? 'ready' : readiness.status;
  page.server.textContent = readiness.ready ? 'Ready' : serverWord(readiness.status);
  if (readiness.status !== 'gone') access.needed = readiness.needsKey;
  const { state, wasOpen, resumable } = call.client.status;
  const waiting = state === 'waiting';
  if (readiness.ready) {
    if (!waiting) clearServerNotice();
    else if (serverWasDown) call.client.connect();
    else if (!(wasOpen || resumable)) notice.show('not-admitted', 'Trying again shortly.');
  } else if (readiness.status === 'warming' || !(waiting || readiness.status === 'gone')) {
    notice.showWarming(readiness);
  } else if (!waiting) {
    notice.show('server-gone', 'This page keeps asking.');
  }
  serverWasDown = !readiness.ready;
  setUsable(readiness.ready);
}

/** Take back what was said about the server, but not what was said about the microphone. */
function clearServerNotice() {
  if (SERVER_PROBLEMS.has(notice.code) || !(notice.code in PROBLEMS)) notice.clear();
}

/** @param {string} status */
function serverWord(status) {
  return status === 'gone' ? 'No answer' : status === 'warming' ? 'Warming up' : 'Not ready';
}

/** @param {boolean} usable */
function setUsable(usable) {
  const inCall = call.client.status.state !== 'closed';
  page.talk.disabled = !usable && !inCall;
  page.sample.disabled = !usable;
}

/** @param {Status} status */
function showConnection(status) {
  if (status.state === 'waiting') {
    const seconds = Math.max(1, Math.round((status.retryInMs ?? 0) / 1000));
    const problem = status.resumable ? 'connection-broke' : problemOfClose(status.code);
    notice.show(problem, `Trying again in ${seconds} s.`);
    page.server.dataset.state = 'gone';
    page.server.textContent = 'Connection lost';
    watch.start();
  } else if (status.state === 'open') {
    watch.stop();
    clearServerNotice();
    page.server.dataset.state = 'open';
    page.server.textContent = 'Connected';
    setUsable(true);
  } else if (status.state === 'closed') {
    if (status.code) notice.show('session-ended', status.reason);
    page.server.dataset.state = 'ready';
    page.server.textContent = 'Ready';
    watch.start();
  }
}

/** @param {Phase} phase */
function showPhase(phase) {
  document.body.dataset.phase = phase;
  page.phase.textContent = PHASE_TEXT[phase];
  const calling = phase !== 'off';
  const hangsUp = calling && (call.devices.hasMicrophone || phase === 'connecting');
  page.talk.setAttribute('aria-pressed', String(hangsUp));
  page.talkLabel.textContent = hangsUp ? 'End the call' : 'Press and talk';
}

function toggleTalk() {
  notice.clear();
  if (page.talk.getAttribute('aria-pressed') === 'true') void call.end();
  else void call.startTalking();
}

/** @param {SubmitEvent} event */
function write(event) {
  event.preventDefault();
  const text = page.text.value.trim();
  if (!text) return;
  page.text.value = '';
  void call.sendText(text);
}

/** @param {CustomEvent<{source: string, level: number}>} event */
function showLevel({ detail: { source, level } }) {
  // Speech lies between 0.003 and 0.3: a square root makes both ends visible.
  const shown = Math.min(1, Math.sqrt(level) * 1.8);
  page.talk.style.setProperty(`--${source}-level`, shown.toFixed(3));
}

function showFigures() {
  const { rateHz, underruns, droppedMs } = call.devices.figures;
  const values = /** @type {Record<string, number>} */ ({
    sentMs: call.uplink.sentMs,
    playedMs: call.reports.totalMs,
    rateHz,
    underruns,
    droppedMs: droppedMs + call.client.droppedMs,
  });
  for (const output of page.figures.querySelectorAll('output')) {
    const value = String(Math.round(values[output.dataset.figure ?? '']));
    if (output.textContent !== value) output.textContent = value;
  }
}

/**
 * @param {EventTarget} target
 * @param {string} type
 * @param {(detail: any) => void} show
 */
function on(target, type, show) {
  target.addEventListener(type, (event) => show(/** @type {CustomEvent} */ (event).detail));
}

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

on(call, 'phase', showPhase);
on(call, 'connection', showConnection);
on(call, 'problem', ({ code, text }) => notice.show(code, text));
on(call, 'solved', ({ code }) => notice.clear(code));
on(call, 'resumed', () => {
  if (!transcript.isEmpty) transcript.addDivider('The connection broke; the call goes on');
});
on(call, 'renewed', () => {
  if (!transcript.isEmpty) transcript.addDivider('New connection: the agent starts afresh');
  transcript.beginAnew();
});
call.addEventListener('level', (event) => showLevel(/** @type {CustomEvent} */ (event)));
on(call.conversation, 'message', (message) => {
  document.body.dataset.started = 'true';
  transcript.show(message);
});
on(call.conversation, 'removed', (itemId) => transcript.remove(itemId));
on(call.conversation, 'turn', ({ itemId, turn }) => transcript.addTurn(itemId, turn));

page.talk.addEventListener('click', toggleTalk);
page.sample.addEventListener('click', () => void call.playSample(SAMPLE_URL));
page.form.addEventListener('submit', write);
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') void call.interrupt();
});
globalThis.addEventListener('online', () => {
  if (call.client.status.state === 'waiting') call.client.connect();
});
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) void call.devices.resume();
});

showPhase('off');
setInterval(showFigures, FIGURES_EVERY_MS);
watch.start();
if (!globalThis.isSecureContext) notice.show('insecure-context');

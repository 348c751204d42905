/** Entry of the voice page: connects the page's elements to a call, and decides what is shown. */

import { Access } from './call/access.js';
import { Call } from './call/call.js';
import { ConnectionChoice } from './webrtc/connection-choice.js';
import { Controls, urlOf } from './ui/controls.js';
import { EventBuffer } from './call/event-buffer.js';
import { KeyDialog } from './ui/key-dialog.js';
import { Notice } from './ui/notice.js';
import { PeerAudio } from './webrtc/peer-audio.js';
import { PreferenceStore } from './call/preferences.js';
import { problemOfClose, problemOfRefusal, PROBLEMS } from './ui/problems.js';
import { ReadinessWatch } from './call/readiness.js';
import { RealtimeClient } from './call/realtime-client.js';
import { askWhyRefused } from './call/refusal.js';
import { Transcript } from './ui/transcript.js';
import { TextInput } from './ui/text-input.js';

/**
 * @typedef {import('./call/readiness.js').Readiness} Readiness
 * @typedef {import('./call/realtime-client.js').Status} Status
 */

const SERVER_PROBLEMS = new Set([
  'connection-broke',
  'server-gone',
  'server-restarting',
  'server-full',
  'lines-taken',
  'not-admitted',
]);

/** "What should I cook for dinner tonight?", spoken by hibari (Apache-2.0), 24 kHz. */
const SAMPLE_URL = 'sample-question.wav';

/** Refresh interval of the figures under "About this call". */
const FIGURES_EVERY_MS = 250;

/** Close code of a connection that broke, whoever closed it. */
const ABNORMAL = 1006;

/** Events held until `call-views.js` has loaded: ten seconds, and 5 MB. */
const MAX_EARLY = 1500;

const page = {
  scroller: byId('scroller'),
  transcript: byId('transcript'),
  announcer: byId('announcer'),
  talk: /** @type {HTMLButtonElement} */ (byId('talk')),
  server: byId('server'),
  sample: /** @type {HTMLButtonElement} */ (byId('sample')),
  form: /** @type {HTMLFormElement} */ (byId('write')),
  notice: byId('notice'),
  figures: byId('figures'),
  download: /** @type {HTMLDetailsElement} */ (byId('download')),
};

const keyDialog = new KeyDialog(/** @type {HTMLDialogElement} */ (byId('key-dialog')));
const access = new Access(askForKey);
const preferences = new PreferenceStore();
const choice = new ConnectionChoice();
const isNamed = new URLSearchParams(globalThis.location.search).has('model');
/** @type {RealtimeClient} */
const client = new RealtimeClient(urlOf(isNamed ? '' : preferences.now.agent), {
  getSecret: () => access.secret(),
  alternative: {
    // Without a loudspeaker there is nothing to gain.
    isWanted: () => !call.conversation.silent && choice.usesWebRtc(preferences.now.connection),
    open: (url, secret) => peers.open(url, secret),
  },
});
const call = new Call(client, preferences);
const transcript = new Transcript(page.scroller, page.transcript, page.announcer);
const notice = new Notice(page.notice, act);
const controls = new Controls({ call, preferences, notice, access });
const peers = new PeerAudio(call, preferences, access); // after push-to-talk was set
const watch = new ReadinessWatch(showReadiness);
let serverWasDown = false;
/** @type {Promise<typeof import('./ui/call-views.js')> | null} */
let callViews = null;
let isTelling = false;
let numGaps = 0;
const events = new EventBuffer(
  [
    [call, ['resumed', 'renewed', 'audio', 'played']],
    [call.client, ['event', 'status']],
    [call.devices, ['batch', 'output']],
    [call.conversation, ['message', 'removed', 'sent', 'turn', 'tool', 'handoff']],
  ],
  () => ({
    atS: call.devices.clockS,
    clockNumber: call.devices.clockNumber,
    pageMs: performance.now(),
  }),
  MAX_EARLY,
);

/** @param {import('./ui/problems.js').Action} action */
function act(action) {
  if (action === 'talk') void call.startTalking();
  if (action === 'resume') void call.devices.resume();
  if (action === 'reconnect') reconnect();
  if (action === 'settings') void controls.openSettings();
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
  page.server.title = readiness.model;
  if (readiness.status !== 'gone') access.needed = readiness.needsKey;
  const { state, wasOpen, resumable } = call.client.status;
  const waiting = state === 'waiting';
  if (readiness.ready) {
    if (!waiting) clearServerNotice();
    else if (serverWasDown) call.client.connect();
    else if (!(wasOpen || resumable)) void explainRefusal();
  } else if (readiness.status === 'warming' || !(waiting || readiness.status === 'gone')) {
    notice.showWarming(readiness);
  } else if (!(wasOpen || resumable)) {
    notice.show('server-gone', waiting ? tryingAgain() : 'This page keeps asking.');
  }
  serverWasDown = !readiness.ready;
  setUsable(readiness.ready);
}

/**
 * The server is up but rejected the call: show the reason, and retry after the time that it gives.
 */
async function explainRefusal() {
  const refusal = await askWhyRefused(client.url, (path) => access.get(path));
  if (client.status.state !== 'waiting') return;
  const seconds = refusal?.retryInS;
  if (seconds) client.retryIn(1000 * seconds);
  const next = seconds ? `Trying again in ${seconds} s.` : 'Trying again shortly.';
  const problem = refusal ? problemOfRefusal(refusal.code) : 'not-admitted';
  notice.show(problem, refusal ? `${refusal.message} ${next}` : next);
}

/** Clear notices about the server, but not those about the microphone. */
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

function tryingAgain() {
  const seconds = Math.max(1, Math.round((client.status.retryInMs ?? 0) / 1000));
  return `Trying again in ${seconds} s.`;
}

/** @param {Status} status */
function showConnection(status) {
  if (status.state === 'waiting') {
    const problem = status.resumable ? 'connection-broke' : problemOfClose(status.code);
    // A rejection looks like a server that is gone until the reason was fetched.
    const isSure = status.wasOpen || problem !== 'server-gone';
    if (isSure) notice.show(problem, tryingAgain());
    page.server.dataset.state = 'gone';
    page.server.textContent = 'Connection lost';
    watch.start();
  } else if (status.state === 'open') {
    watch.stop();
    clearServerNotice();
    page.server.dataset.state = 'open';
    page.server.textContent = 'Connected';
    setUsable(true);
    showTransport();
  } else if (status.state === 'closed') {
    if (status.code) notice.show('session-ended', status.reason);
    choice.ended();
    page.server.dataset.state = 'ready';
    page.server.textContent = 'Ready';
    watch.start();
  }
}

/** What only a WebSocket has is hidden otherwise. */
function showTransport() {
  const { usesTracks } = client;
  document.body.dataset.connection = usesTracks ? 'webrtc' : 'websocket';
  if (usesTracks) page.server.textContent = 'Connected: WebRTC';
}

/** @param {Status} status */
function noteLoss({ wasOpen, code }) {
  const isBroken = wasOpen && code === ABNORMAL && !client.usesTracks;
  if (isBroken) choice.note('broken', performance.now());
}

/** @param {number} underruns so far, of the devices that are open */
function noteGaps(underruns) {
  choice.note('gap', performance.now(), underruns - numGaps);
  numGaps = underruns;
}

/** Loaded at the first interaction, before the call begins. */
async function tellOfCall() {
  callViews ??= import('./ui/call-views.js');
  try {
    const { showCall } = await callViews;
    if (isTelling) return;
    isTelling = true;
    showCall(call, transcript, access, page.download, events);
  } catch {
    callViews = null; // the server is gone; the page continues without it, and tries again
  }
}

function showFigures() {
  const { rateHz, underruns, droppedMs } = call.devices.figures;
  noteGaps(underruns);
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

on(call, 'phase', (phase) => {
  controls.showPhase(phase);
  if (phase === 'off') events.drop();
  else void tellOfCall();
});
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
on(client, 'status', noteLoss);
on(call.uplink, 'slow', () => choice.note('dropped', performance.now()));
on(client, 'fallback', ({ reason }) => {
  choice.failed();
  call.devices.playRemote(null); // what the failed try had begun to play
  notice.show('webrtc-failed', reason);
});
on(call.conversation, 'message', (message) => {
  document.body.dataset.started = 'true';
  transcript.show(message);
});
on(call.conversation, 'removed', (itemId) => transcript.remove(itemId));
on(call.conversation, 'sent', (itemId) => transcript.remove(itemId));
on(call.conversation, 'turn', ({ itemId, turn }) => transcript.addTurn(itemId, turn));

page.sample.addEventListener('click', () => void call.playSample(SAMPLE_URL));
new TextInput(page.form, (text) => void call.sendText(text));
for (const touch of ['pointerdown', 'keydown']) {
  document.addEventListener(touch, () => void tellOfCall(), { once: true, capture: true });
}
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !document.querySelector('dialog[open]')) void call.interrupt();
});
controls.showPhase('off');
setInterval(showFigures, FIGURES_EVERY_MS);
watch.start();
if (!globalThis.isSecureContext) notice.show('insecure-context');

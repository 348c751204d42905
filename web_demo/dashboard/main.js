/** Entry of the dashboard: creates its parts and passes the server's data to them. */

import { Access } from '../call/access.js';
import { KeyDialog } from '../ui/key-dialog.js';
import { Analysis } from './charts/analysis.js';
import { Api, ServerError } from './data/api.js';
import { Banner } from './tables/banner.js';
import { LiveCalls } from './tables/live-calls.js';
import { Engine } from './tables/engine.js';
import { EventStream } from './data/events.js';
import { FiguresWatch } from './data/figures.js';
import { Filters } from './tables/filters.js';
import { count, plural } from './data/format.js';
import { SummaryRow } from './tables/summary.js';
import { HealthWatch } from './data/health.js';
import { find, Renderer, write } from './renderer.js';
import { Refusals } from './tables/refusals.js';
import { MAX_ROWS, TurnList } from './data/turn-list.js';
import { TurnTable } from './tables/turn-table.js';

/**
 * @typedef {import('./tables/banner.js').Code} Code
 * @typedef {import('./data/events.js').StreamState} StreamState
 * @typedef {import('./data/health.js').Health} Health
 */

/** Delay after a turn's end before the list of calls is fetched: it has their median latency. */
const CALLS_AFTER_MS = 1000;

const renderer = new Renderer();
const dialog = new KeyDialog(find(document, '#key-dialog'));
const access = new Access((problem) => dialog.ask(problem));
const api = new Api(access);
const banner = new Banner(find(document, '#banner'), onBanner);
const notes = new Banner(find(document, '#notes'), onBanner);
const head = new SummaryRow(find(document, '#head'), renderer);
const refusals = new Refusals(find(document, '#refusals'), renderer, (total) => head.setRefused(total));
const engine = new Engine(find(document, '#engine'), find(document, '#guesses'), renderer);
const analysis = new Analysis(find(document, '#analysis'), renderer, engine);
const filters = new Filters(find(document, '#filters'), () => api.now(), onFilters);
const calls = new LiveCalls(find(document, '#live'), renderer, {
  onCount: (number) => head.setCalls(number),
  onChoose: (session) => filters.showSession(session),
});
const list = new TurnList(api, (numNew) => onTurns(numNew));
const table = new TurnTable(find(document, '#turns'), list, renderer, (row) => openTurn(row.key));
const figures = new FiguresWatch(api, filters, {
  onFigures: (answer) => {
    head.setSummary(answer.summary);
    engine.setSummary(answer.summary);
    analysis.set(answer);
    disable('#export-distributions', answer.summary.answered === 0);
    table.setTotal(list.noHistory ? list.length : answer.summary.turns);
    renderer.want(drawStatus);
  },
  onBurn: (shares) => analysis.setBurn(shares),
  onProfiles: (names) => filters.offerProfiles(names),
  onReplicas,
  onProblem: (problem) => banner.set('failed', problem !== '', problem),
});
const health = new HealthWatch(onHealth);
const stream = new EventStream(api, onEvent, onStream);

/** @type {ReturnType<typeof setTimeout> | undefined} */
let callsTimer;
/** @type {import('./tables/turn-panel.js').TurnPanel | null} */
let panel = null;

/** Fetch everything: at the start, and when events may have been missed. */
async function readAll() {
  void readCalls();
  void readRefusals();
  await list.refresh(filters.query);
  const hasHistory = list.noHistory === '';
  figures.hasHistory = hasHistory;
  filters.enableHistory(hasHistory);
  notes.set('store', !hasHistory, list.noHistory);
  await figures.ask();
}

async function readCalls() {
  clearTimeout(callsTimer);
  await orNothing(async () => calls.set((await api.json('v1/sessions')).sessions));
}

async function readRefusals() {
  await orNothing(async () => refusals.set(await api.json('v1/latency/refusals')));
}

/**
 * Run a request and ignore that the server is unreachable: the event stream reports that once for
 * all.
 * @param {() => Promise<void>} ask
 */
async function orNothing(ask) {
  try {
    await ask();
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
  }
}

function onFilters() {
  table.scrollToTop();
  table.setTotal(-1);
  void list.reset(filters.query);
  void figures.ask();
}

/**
 * @param {string} kind
 * @param {any} data
 */
function onEvent(kind, data) {
  if (kind === 'mark') calls.onMark(data);
  else if (kind === 'session') calls.onSession(data);
  else if (kind === 'engine') engine.set(data, api.now());
  else if (kind === 'refusal') refusals.add({ at: new Date(api.now()).toISOString(), ...data });
  else if (kind === 'turn') onTurn(data);
  else if (kind === 'lost') {
    banner.set('lost', true);
    void readAll();
  }
}

/** @param {import('./data/turn-row.js').Turn} turn */
function onTurn(turn) {
  calls.onTurn(turn);
  if (filters.isLive) list.add({ ...turn, at: turn.at ?? new Date(api.now()).toISOString() });
  figures.soon();
  clearTimeout(callsTimer);
  callsTimer = setTimeout(() => void readCalls(), CALLS_AFTER_MS);
}

/**
 * @param {StreamState} state
 * @param {string} reason
 */
function onStream(state, reason) {
  document.body.dataset.stream = state;
  banner.set('key', state === 'locked');
  banner.set('refused', state === 'refused', reason);
  banner.set('full', state === 'full');
  banner.set('gone', state === 'gone');
  const words = state === 'live' || state === 'ended' ? 'Live' : state === 'full' ? 'Not live' : 'Offline';
  write(find(document, '#stream'), words);
  if (state === 'live' || state === 'full') void readAll();
  if (state === 'gone') void health.ask();
}

/** @param {Health} answer */
function onHealth({ status, stages, problems, needsKey }) {
  access.needed = access.needed || needsKey;
  notes.set('warming', status === 'warming', '', stages);
  notes.set('draining', status === 'draining');
  notes.set('broken', status === 'broken' || status === 'failed', '', stages);
  notes.set('degraded', status === 'degraded', problems.join(' '));
  if (status !== 'gone' && document.body.dataset.stream === 'gone') void stream.start();
}

/**
 * The servers that share the store. Events tell of this one's turns only: those of the others are
 * fetched with the figures.
 * @param {string[]} names
 */
function onReplicas(names) {
  filters.offerReplicas(names);
  if (names.length > 1 && filters.isLive) void list.refresh(filters.query);
}

/** @param {Code} code */
function onBanner(code) {
  if (code === 'lost') banner.set('lost', false);
  else if (code === 'failed') void figures.ask();
  else {
    if (code === 'refused') access.forget();
    void stream.start();
  }
}

/** @param {number} numNew */
function onTurns(numNew) {
  table.changed(numNew);
  renderer.want(drawStatus);
}

function drawStatus() {
  const { length, isLoading, hasMore, isFull, wasCut, problem, noHistory } = list;
  const empty = find(document, '#turns-empty');
  empty.hidden = length > 0;
  empty.dataset.mood = isLoading ? 'loading' : 'empty';
  const { session, profile, replica } = filters.query;
  const nothing = session || profile || replica ? 'No turns like that.' : 'No turns yet.';
  write(empty, isLoading ? 'Reading turns …' : problem || nothing);
  const end = isFull || (wasCut && !hasMore)
    ? `This page holds the newest ${count(MAX_ROWS)}; choose other times to see older ones.`
    : hasMore
      ? 'Older ones come as you scroll.'
      : noHistory
        ? 'Older ones are not kept.'
        : 'That is all of them.';
  const status = length === 0 ? '' : `${plural(length, 'turn')} here. ${problem || end}`;
  write(find(document, '#turns-status'), status);
  disable('#export-turns', length === 0);
}

/**
 * @param {string} button
 * @param {boolean} isDisabled
 */
function disable(button, isDisabled) {
  /** @type {HTMLButtonElement} */ (find(document, button)).disabled = isDisabled;
}

/** @param {string} key */
function openTurn(key) {
  filters.setOpenTurn(key);
  void showTurn();
}

/** Open the turn that the address names, or close the panel. */
async function showTurn() {
  const key = filters.openTurn;
  if (panel === null && key === '') return;
  const { TurnPanel } = await import('./tables/turn-panel.js');
  panel ??= new TurnPanel(find(document, '#turn-dialog'), api, () => filters.setOpenTurn(''));
  if (key === '') panel.close();
  else await panel.show(key, list.rowOf(key));
}

/** @param {(module: typeof import('./data/csv.js')) => Promise<void>} run */
async function exportCsv(run) {
  const said = find(document, '#export-status');
  try {
    write(said, 'Collecting …');
    await run(await import('./data/csv.js'));
    write(said, '');
  } catch (error) {
    write(said, error instanceof ServerError ? error.message : 'The export failed.');
  }
}

find(document, '#export-turns').addEventListener('click', () =>
  exportCsv(({ saveTurns }) => {
    const known = list.noHistory ? { session: filters.query.session } : filters.query;
    const tell = (/** @type {number} */ done) =>
      write(find(document, '#export-status'), `${plural(done, 'turn')} so far …`);
    return saveTurns(api, known, tell);
  }),
);
find(document, '#export-distributions').addEventListener('click', () =>
  exportCsv(async ({ saveDistributions }) => saveDistributions(analysis.histograms)),
);
addEventListener('popstate', () => {
  if (filters.readAddress()) onFilters();
  void showTurn();
});
addEventListener('online', () => void stream.start());

await health.ask();
void stream.start();
void showTurn();

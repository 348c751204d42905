/** Panel of one turn: waterfall, actions of the policy, transcript, recording and trace. */

import { element } from '../../ui/dom.js';
import { ServerError } from '../data/api.js';
import { dayAndTime, milliseconds, plural } from '../data/format.js';
import { find, write } from '../renderer.js';
import { soundOf } from '../data/recording.js';
import { keyOf, rowOf } from '../data/turn-row.js';
import { describe, waterfall } from '../charts/waterfall.js';
import { ACTIONS } from '../data/labels.js';

/**
 * @typedef {import('../data/turn-row.js').Row} Row
 * @typedef {import('../data/turn-row.js').Turn} Turn
 */

const PAGE = 1000;

export class TurnPanel {
  /**
   * @param {HTMLDialogElement} dialog
   * @param {import('../data/api.js').Api} api
   * @param {() => void} onClose
   */
  constructor(dialog, api, onClose) {
    /** @private */
    this.dialog = dialog;
    /** @private */
    this.api = api;
    /** @private */
    this.body = find(dialog, '.panel-body');
    /** @private */
    this.title = find(dialog, 'h2');
    /** @private */
    this.key = '';
    /** @private */
    this.soundUrl = '';
    find(dialog, '.panel-close').addEventListener('click', () => dialog.close());
    dialog.addEventListener('click', (event) => {
      if (event.target === dialog) dialog.close(); // beside the panel
    });
    dialog.addEventListener('close', () => {
      this.clear();
      onClose();
    });
  }

  close() {
    if (this.dialog.open) this.dialog.close();
  }

  /**
   * @param {string} key `session/number`
   * @param {Row | null} row row of the table, if it is loaded
   */
  async show(key, row) {
    if (this.key === key && this.dialog.open) return;
    this.clear();
    this.key = key;
    const slash = key.lastIndexOf('/');
    const session = key.slice(0, slash);
    const number = Number(key.slice(slash + 1));
    write(this.title, `Turn ${number}`);
    this.body.replaceChildren(element('p', 'panel-note', 'Reading the turn …'));
    if (!this.dialog.open) this.dialog.showModal();
    let found;
    try {
      found = await this.find(session, number, row?.row ?? null);
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      found = error.message;
    }
    if (this.key !== key) return;
    if (typeof found === 'string') this.body.replaceChildren(element('p', 'panel-note', found));
    else this.body.replaceChildren(...this.parts(found));
  }

  /**
   * Fetch the turn from the server's memory, which has its marks, else from the store.
   * @private
   * @param {string} session
   * @param {number} number
   * @param {number | null} row
   * @returns {Promise<Turn | string>} or the reason why it is unavailable
   */
  async find(session, number, row) {
    const path = 'v1/latency/turns';
    const key = keyOf({ session, turn: number });
    const isIt = (/** @type {Turn} */ turn) => keyOf(turn) === key;
    const newest = await this.api.json(path, { session, limit: PAGE });
    const known = newest.turns.find(isIt);
    if (known) return known;
    /** @type {number | null} */
    let before = row === null ? null : row + 1;
    try {
      do {
        const limit = row === null ? PAGE : 1;
        const older = await this.api.json(path, { session, since: 0, before, limit });
        const found = older.turns.find(isIt);
        if (found) return found;
        before = row === null ? older.before : null;
      } while (before !== null);
    } catch (error) {
      if (!(error instanceof ServerError) || error.status !== 400) throw error;
    }
    return 'This turn is not known here any more. Old turns are deleted after some time.';
  }

  /** @private */
  clear() {
    if (this.soundUrl) URL.revokeObjectURL(this.soundUrl);
    this.soundUrl = '';
    this.key = '';
    this.body.replaceChildren();
  }

  /**
   * @private
   * @param {Turn} turn
   * @returns {HTMLElement[]}
   */
  parts(turn) {
    const parts = [headline(turn), facts(turn), section('Where the time went', ...picture(turn))];
    parts.push(section('What the policy did', ...actions(turn)));
    const doubted = doubts(turn);
    if (doubted.length > 0) parts.push(section('Notes', ...doubted));
    parts.push(section('What was said', ...words(turn)), section('Sound and trace', ...this.files(turn)));
    return parts;
  }

  /**
   * @private
   * @param {Turn} turn
   */
  files(turn) {
    const said = element('p', 'panel-note');
    said.setAttribute('role', 'status');
    const trace = action('Download the trace of the call', said, () => this.saveTrace(turn.session));
    if (!turn.recording) {
      write(said, 'There is no recording of this turn (agent.record_dir).');
      return [trace, said];
    }
    const { recording } = turn;
    const player = element('audio', 'player');
    player.setAttribute('controls', '');
    player.hidden = true;
    const listen = action('Listen to the turn', said, async () => {
      const sound = await soundOf(this.api, turn.session, recording, turn.at);
      if (this.key !== keyOf(turn)) return;
      this.soundUrl = URL.createObjectURL(sound);
      player.setAttribute('src', this.soundUrl);
      player.hidden = false;
      listen.hidden = true;
      player.focus();
    });
    return [listen, player, trace, said];
  }

  /**
   * @private
   * @param {string} session
   */
  async saveTrace(session) {
    const answer = await this.api.open(`v1/sessions/${encodeURIComponent(session)}/trace`);
    const url = URL.createObjectURL(await answer.blob());
    const link = document.createElement('a');
    link.href = url;
    link.download = `${session.replace(/[^\w.-]/g, '_')}.jsonl`;
    link.click();
    URL.revokeObjectURL(url);
  }
}

/** @param {Turn} turn */
function headline(turn) {
  const { waitMs, budgetMs, within, heard, note } = rowOf(turn);
  const line = element('p', 'panel-headline');
  const figure = element('strong', '', turn.cut_in ? 'Cut in' : milliseconds(waitMs));
  figure.dataset.verdict = turn.cut_in || within === false ? 'over' : within ? 'within' : 'none';
  const budget = within
    ? `within its budget of ${Math.round(budgetMs)} ms`
    : `its budget was ${Math.round(budgetMs)} ms`;
  const where = heard ? 'to the caller’s ear' : 'to the sound being sent';
  const words = waitMs === null ? [note] : [`from the last word ${where}`, budget, note];
  line.append(figure, ' ', element('span', '', words.filter(Boolean).join(' · ')));
  return line;
}

/** @param {Turn} turn */
function facts(turn) {
  const { atMs, agent, profile } = rowOf(turn);
  const list = element('dl', 'panel-facts');
  const { widened_ms: widened } = turn.budget ?? {};
  /** @type {[string, string | null | undefined][]} */
  const known = [
    ['Ended', atMs === null ? null : dayAndTime(atMs)],
    ['Call', turn.session],
    ['Agent', agent],
    ['Server', turn.replica ?? ''],
    ['Budget', profile && `${profile}${widened ? `, widened by ${milliseconds(widened)}` : ''}`],
    ['At the server', turn.e2e_server_ms == null ? null : milliseconds(turn.e2e_server_ms)],
    ['At the ear', turn.e2e_ear_ms == null ? null : milliseconds(turn.e2e_ear_ms)],
    ['Held back', turn.paced_ms ? milliseconds(turn.paced_ms) : null],
    ['Reply', turn.reply_s == null ? null : `${turn.reply_s.toFixed(1)} s of speech`],
  ];
  for (const [name, text] of known) {
    if (!text) continue;
    const pair = element('div', '');
    const value = element('dd', '');
    value.append(element('bdi', '', text));
    pair.append(element('dt', '', name), value);
    list.append(pair);
  }
  return list;
}

/** @param {Turn} turn */
function picture(turn) {
  const note = 'Full: the caller waited for it. Pale: hidden behind other work.';
  const made = [waterfall(turn), element('p', 'panel-note', note)];
  const marks = turn.marks ?? [];
  if (marks.length === 0) {
    made.push(element('p', 'panel-note', 'The marks of this turn are no longer available.'));
    return made;
  }
  const details = element('details', '');
  const list = element('ol', 'mark-list');
  list.append(...marks.map((mark) => element('li', '', describe(mark))));
  details.append(element('summary', '', `All ${plural(marks.length, 'mark')}`), list);
  return [...made, details];
}

/** @param {Turn} turn */
function actions(turn) {
  const taken = turn.actions ?? [];
  if (taken.length === 0) return [element('p', 'panel-note', 'Nothing was done for this turn.')];
  const list = element('ul', 'panel-actions');
  const why = `The turn was about to miss its ${Math.round(rowOf(turn).budgetMs)} ms.`;
  for (const { action: name, predicted_ms, saved_ms } of taken) {
    const item = element('li', '');
    const saved =
      saved_ms === null ? 'what it saved is not known yet' : `saved ${milliseconds(saved_ms)}`;
    item.append(
      element('b', '', name.replaceAll('_', ' ')),
      element('span', '', ` ${ACTIONS[name] ?? ''} `),
      element('span', 'panel-note', `Was to save ${milliseconds(predicted_ms)}; ${saved}.`),
    );
    list.append(item);
  }
  return [element('p', '', why), list];
}

/** @param {Turn} turn */
function doubts({ waterfall: drawn, outcome, interrupted }) {
  const lines = [];
  if (outcome === 'cut_in') lines.push('The caller had not finished, and went on.');
  if (outcome === 'reopened') lines.push('The caller went on before the answer could be heard.');
  if (interrupted) lines.push('The caller interrupted the answer.');
  if (drawn?.wasted_ms) {
    const tokens = `${plural(drawn.wasted_prompt_tokens ?? 0, 'token')} read and ${drawn.wasted_output_tokens ?? 0} written`;
    lines.push(`Wasted work of dropped speculative replies: ${milliseconds(drawn.wasted_ms)}, ${tokens}.`);
  }
  if (drawn?.incomplete?.length) lines.push(`The account has gaps: ${drawn.incomplete.join(', ')}.`);
  return lines.map((text) => element('p', '', text));
}

/** @param {Turn} turn */
function words({ caller_text: caller, agent_text: agent }) {
  if (!caller && !agent) {
    return [element('p', 'panel-note', 'Words are not kept (latency_budget.store_texts).')];
  }
  /** @type {[string, string | undefined][]} */
  const said = [
    ['Caller', caller],
    ['Agent', agent],
  ];
  return said.map(([who, text]) => {
    const line = element('p', `said said-${who.toLowerCase()}`);
    const quote = element('q', '', text || '…');
    quote.setAttribute('dir', 'auto');
    line.append(element('span', 'said-who', who), quote);
    return line;
  });
}

/**
 * @param {string} title
 * @param {...HTMLElement} content
 */
function section(title, ...content) {
  const made = element('section', 'panel-part');
  made.append(element('h3', '', title), ...content);
  return made;
}

/**
 * Button for an action that takes time and may fail.
 * @param {string} text
 * @param {HTMLElement} said
 * @param {() => Promise<void>} run
 */
function action(text, said, run) {
  const button = element('button', 'plain', text);
  button.setAttribute('type', 'button');
  button.addEventListener('click', async () => {
    write(said, 'One moment …');
    try {
      await run();
      write(said, '');
    } catch (error) {
      write(said, error instanceof ServerError ? error.message : 'That failed.');
    }
  });
  return button;
}

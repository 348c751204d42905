/**
 * Settings dialog, created when it is first opened. Changes take effect at once, also during a
 * call, and are stored by the browser.
 */

import { DeviceList } from '../audio/device-list.js';
import { fillSelect, numberField, selectField, switchField, textField } from './form-fields.js';
import { element } from './dom.js';
import { isValid, MAX_INSTRUCTIONS_CHARS, SILENCE_MS } from '../call/preferences.js';

/**
 * @typedef {import('../call/preferences.js').Preference} Preference
 * @typedef {import('../call/preferences.js').PreferenceStore} PreferenceStore
 * @typedef {import('../call/call.js').Call} Call
 * @typedef {import('../call/access.js').Access} Access
 * @typedef {import('./form-fields.js').Field} Field
 */

const STYLE = 'styles/settings.css';

/** @type {readonly [string, string][]} */
const TURN_WAYS = [
  ['auto', 'When it sounds finished'],
  ['low', 'When it sounds finished: patient'],
  ['medium', 'When it sounds finished: medium'],
  ['high', 'When it sounds finished: eager'],
  ['silence', 'After a fixed silence'],
  ['hold', 'When you let go (push to talk)'],
];

/** @type {readonly [string, string][]} */
const CONNECTION_WAYS = [
  ['auto', 'Automatic'],
  ['websocket', 'WebSocket'],
  ['webrtc', 'WebRTC'],
];

const OWN_VOICE = 'The agent’s own';
const SYSTEMS_CHOICE = 'As the system chooses';

export class SettingsPanel {
  /**
   * @param {PreferenceStore} preferences
   * @param {Call} call
   * @param {Access} access
   * @returns {Promise<SettingsPanel>} once its style sheet has loaded
   */
  static async create(preferences, call, access) {
    await loadStyle();
    return new SettingsPanel(preferences, call, access);
  }

  /**
   * Use `SettingsPanel.create`.
   * @param {PreferenceStore} preferences
   * @param {Call} call
   * @param {Access} access
   */
  constructor(preferences, call, access) {
    /** @private */
    this.preferences = preferences;
    /** @private */
    this.call = call;
    /** @private */
    this.access = access;
    /** @private */
    this.devices = new DeviceList();
    /** @private @type {Record<Preference, Field>} */
    this.fields = makeFields(this.devices.canChooseSpeaker);
    /** @private */
    this.note = element('p', 'settings-note');
    /** @private */
    this.dialog = this.build();
    document.body.append(this.dialog);
    for (const [name, { input }] of Object.entries(this.fields)) {
      input.addEventListener('change', () => this.onInput(/** @type {Preference} */ (name)));
    }
    preferences.addEventListener('change', () => this.show());
    this.devices.addEventListener('change', () => this.show());
    call.settings.addEventListener('refused', (event) => this.onAnswer(event));
    call.settings.addEventListener('accepted', (event) => this.onAnswer(event));
    call.addEventListener('phase', () => void this.devices.refresh());
  }

  open() {
    if (this.dialog.open) return;
    this.show();
    for (const [name, message] of this.call.settings.refusals) this.fields[name].showError(message);
    this.dialog.showModal();
    void this.devices.refresh();
    void this.loadModels();
  }

  /** @private */
  build() {
    const dialog = /** @type {HTMLDialogElement} */ (element('dialog', 'settings'));
    dialog.setAttribute('aria-labelledby', 'settings-title');
    const title = element('h2', '', 'Settings');
    title.id = 'settings-title';
    const close = button('Done', 'settings-done', () => dialog.close());
    const head = element('div', 'settings-head');
    head.append(title, close);
    const reset = button('Reset everything', 'settings-reset', () => this.preferences.reset());
    const foot = element('div', 'settings-foot');
    foot.append(element('p', '', 'Remembered by this browser; the key never is.'), reset);
    const { fields } = this;
    dialog.append(
      head,
      group('Taking turns', fields.turns, fields.silenceMs),
      group('Agent', this.note, fields.agent, fields.voice, fields.instructions),
      group(
        'Sound',
        fields.microphone,
        fields.speaker,
        fields.echoCancellation,
        fields.noiseSuppression,
        fields.autoGainControl,
      ),
      group('Connection', fields.connection),
      foot,
    );
    dialog.addEventListener('click', (event) => {
      if (event.target === dialog) dialog.close(); // beside it
    });
    return dialog;
  }

  /** @private Every field as it is preferred now. */
  show() {
    const { now } = this.preferences;
    const { fields, devices } = this;
    fillSelect(fields.microphone, SYSTEMS_CHOICE, devices.microphones, now.microphone);
    fillSelect(fields.speaker, SYSTEMS_CHOICE, devices.speakers, now.speaker);
    const isNamed = devices.microphones.length > 0;
    fields.microphone.hint(isNamed ? '' : 'They have names once the microphone was allowed.');
    for (const [name, each] of Object.entries(fields)) {
      each.show(now[/** @type {Preference} */ (name)]);
    }
    fields.silenceMs.box.hidden = now.turns !== 'silence';
  }

  /**
   * @private
   * @param {Preference} name
   */
  onInput(name) {
    const { fields, preferences } = this;
    const value = fields[name].value();
    if (isValid(name, value)) {
      fields[name].showError('');
      preferences.change({ [name]: value });
    } else if (name === 'silenceMs') {
      const { least, most } = SILENCE_MS;
      fields[name].showError(`A whole number from ${least} to ${most}, please.`);
    }
  }

  /**
   * @private
   * @param {Event} event `refused` or `accepted`
   */
  onAnswer(event) {
    const { field: name, message } = /** @type {CustomEvent} */ (event).detail;
    const refused = /** @type {Preference} */ (name);
    this.fields[refused].showError(message ? `The server says: ${message}` : '');
  }

  /** @private What there is to choose from, as the server says. */
  async loadModels() {
    const { fields, preferences } = this;
    const models = await askModels(this.access);
    this.note.textContent = typeof models === 'string' ? models : '';
    const { agents, voices } = typeof models === 'string' ? { agents: [], voices: [] } : models;
    fillSelect(fields.agent, 'The server’s choice', agents, preferences.now.agent);
    fillSelect(fields.voice, OWN_VOICE, voices, preferences.now.voice);
  }
}

/**
 * @param {boolean} canChooseSpeaker
 * @returns {Record<Preference, Field>}
 */
function makeFields(canChooseSpeaker) {
  const speaker = selectField('speaker', 'Loudspeaker', '');
  speaker.box.hidden = !canChooseSpeaker;
  return {
    turns: selectField(
      'turns',
      'Your turn is over',
      'Patient suits those who think while they speak. With push to talk, hold the button or Space.',
      TURN_WAYS,
    ),
    silenceMs: numberField('silenceMs', 'Silence, in milliseconds', SILENCE_MS),
    agent: selectField('agent', 'Who answers', 'Another agent begins a new call.'),
    voice: selectField(
      'voice',
      'Voice',
      'From the next answer on. Servers that allow it only before the first sound keep it for the next call.',
    ),
    instructions: textField(
      'instructions',
      'Instructions',
      'What the agent is told to be. Empty: its own.',
      MAX_INSTRUCTIONS_CHARS,
    ),
    microphone: selectField('microphone', 'Microphone', ''),
    speaker,
    echoCancellation: switchField(
      'echoCancellation',
      'Echo cancellation',
      'Without it, and without headphones, the agent hears itself.',
    ),
    noiseSuppression: switchField('noiseSuppression', 'Noise suppression', ''),
    autoGainControl: switchField('autoGainControl', 'Automatic gain', ''),
    connection: selectField(
      'connection',
      'Connection',
      'From the next call on. WebRTC suits networks that lose packets; it does not resume a call that ' +
        'broke, and shows no latency. Automatic: WebSocket, and WebRTC once the line has proved lossy.',
      CONNECTION_WAYS,
    ),
  };
}

/**
 * @param {Access} access
 * @returns {Promise<string | {agents: {id: string, label: string}[], voices: {id: string, label:
 *   string}[]}>} a string: the reason why the lists are unavailable
 */
async function askModels(access) {
  try {
    const answer = await access.get('v1/models');
    if (answer.status === 401) {
      return 'This server shows its agents and voices to those with a key. Press and talk: the page asks for it.';
    }
    const { data } = await answer.json();
    const named = (/** @type {string} */ wanted) =>
      /** @type {{id: string, kind: string}[]} */ (data)
        .filter(({ kind }) => kind === wanted)
        .map(({ id }) => ({ id, label: id }));
    return { agents: named('agent'), voices: named('voice') };
  } catch {
    return 'The server did not say which agents and voices it has.';
  }
}

/**
 * @param {string} title
 * @param {(Field | HTMLElement)[]} parts
 */
function group(title, ...parts) {
  const box = element('fieldset', '');
  const nodes = parts.map((part) => (part instanceof HTMLElement ? part : part.box));
  box.append(element('legend', '', title), ...nodes);
  return box;
}

/**
 * @param {string} text
 * @param {string} className
 * @param {() => void} onClick
 */
function button(text, className, onClick) {
  const made = /** @type {HTMLButtonElement} */ (element('button', className, text));
  made.type = 'button';
  made.addEventListener('click', onClick);
  return made;
}

/** @returns {Promise<void>} resolves also on failure: the dialog works without it */
function loadStyle() {
  const link = /** @type {HTMLLinkElement} */ (element('link', ''));
  link.rel = 'stylesheet';
  link.href = STYLE;
  return new Promise((resolve) => {
    link.addEventListener('load', () => resolve());
    link.addEventListener('error', () => resolve());
    document.head.append(link);
  });
}

/**
 * Controls of the page: talk button, mute, hang-up, meters and settings; and handling of a page
 * that sleeps, is in the background or is open twice.
 */

import { LevelMeter } from './level-meter.js';
import { permission } from '../audio/microphone.js';
import { MicrophoneLock } from '../audio/microphone-lock.js';
import { defaultUrl } from '../call/realtime-client.js';
import { TalkButton } from './talk-button.js';
import { SleepDetector } from '../call/sleep-detector.js';

/**
 * @typedef {import('../call/call.js').Phase} Phase
 * @typedef {import('../call/preferences.js').Preference} Preference
 * @typedef {import('./settings-panel.js').SettingsPanel} SettingsPanel
 *
 * @typedef {object} Parts
 * @property {import('../call/call.js').Call} call
 * @property {import('../call/preferences.js').PreferenceStore} preferences
 * @property {import('./notice.js').Notice} notice
 * @property {import('../call/access.js').Access} access
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

const hasKeys = !globalThis.matchMedia('(hover: none)').matches;

/** Labels that differ with push-to-talk. @type {Partial<Record<Phase, string>>} */
const HOLDING_TEXT = {
  listening: hasKeys ? 'Hold the button, or Space, and talk' : 'Hold the button and talk',
  hearing: 'Let go when you have finished',
  speaking: 'Speaking: hold to interrupt',
};

/** @type {readonly Preference[]} */
const OF_DEVICES = [
  'microphone',
  'speaker',
  'echoCancellation',
  'noiseSuppression',
  'autoGainControl',
];

/**
 * @param {string} agent empty: the agent in the page's address, or the server's default
 * @returns {string} its voice socket
 */
export function urlOf(agent) {
  const url = new URL(defaultUrl());
  if (agent) url.searchParams.set('model', agent);
  return url.href;
}

export class Controls {
  /** @param {Parts} parts */
  constructor(parts) {
    /** @private */
    this.parts = parts;
    const { call, preferences } = parts;
    /** @private */
    this.talk = /** @type {HTMLButtonElement} */ (byId('talk'));
    /** @private */
    this.mute = byId('mute');
    /** @private */
    this.end = byId('end');
    /** @private */
    this.button = new TalkButton(this.talk, {
      isHeld: () => this.isHolding,
      toggle: () => this.toggle(),
      press: () => this.press(),
      release: () => call.pushToTalk.release(),
    });
    /** @private */
    this.tabs = new MicrophoneLock(() => this.giveUpMicrophone());
    const bottomBar = byId('bottom-bar');
    /** @private */
    this.meters = {
      caller: new LevelMeter(bottomBar, '--caller-level'),
      agent: new LevelMeter(bottomBar, '--agent-level'),
    };
    /** @private */
    this.muted = false;
    /** @private */
    this.hadMicrophone = false;
    /** @private @type {Promise<SettingsPanel> | null} */
    this.panel = null;
    this.mute.addEventListener('click', () => this.setMuted(!this.muted));
    this.end.addEventListener('click', () => void call.end());
    byId('settings').addEventListener('click', () => void this.openSettings());
    preferences.addEventListener('change', (event) => {
      this.onChange(/** @type {CustomEvent<Preference[]>} */ (event).detail);
    });
    call.settings.addEventListener('refused', (event) => {
      const { message } = /** @type {CustomEvent} */ (event).detail;
      if (!document.querySelector('dialog[open]')) parts.notice.show('setting-refused', message);
    });
    this.onChange(['turns', ...OF_DEVICES]);
    this.showLevels();
    this.tellOfDevices();
    this.stayAwake();
    void this.watchPermission();
  }

  /** @param {Phase} phase */
  showPhase(phase) {
    const { call } = this.parts;
    const { hasMicrophone } = call.devices;
    document.body.dataset.phase = phase;
    const isCalling = phase !== 'off';
    const hangsUp =
      isCalling && !this.isHolding && (hasMicrophone || phase === 'connecting');
    const isHeld = this.isHolding && call.pushToTalk.held;
    byId('phase').textContent = this.textOf(phase);
    byId('talk-label').textContent = this.labelOf(isCalling, hangsUp);
    this.talk.setAttribute('aria-pressed', String(hangsUp || isHeld));
    this.talk.dataset.shows = hangsUp ? 'end' : 'talk';
    this.mute.hidden = !hasMicrophone || this.isHolding;
    this.end.hidden = !isCalling || hangsUp;
    if (hasMicrophone && !this.hadMicrophone) this.tabs.take();
    this.hadMicrophone = hasMicrophone;
    if (!hasMicrophone) this.meters.caller.show(0);
  }

  async openSettings() {
    this.button.letGo();
    this.panel ??= this.loadSettings();
    (await this.panel).open();
  }

  /** @private Nobody needs it before it is asked for. */
  async loadSettings() {
    const { SettingsPanel } = await import('./settings-panel.js');
    const { call, preferences, access } = this.parts;
    return SettingsPanel.create(preferences, call, access);
  }

  /** @private */
  get isHolding() {
    return this.parts.preferences.now.turns === 'hold';
  }

  /**
   * @private
   * @param {Phase} phase
   */
  textOf(phase) {
    const { hasMicrophone } = this.parts.call.devices;
    if (hasMicrophone && this.isHolding) return HOLDING_TEXT[phase] ?? PHASE_TEXT[phase];
    if (hasMicrophone && this.muted && phase === 'listening') return 'Muted: it hears silence';
    return PHASE_TEXT[phase];
  }

  /**
   * @private
   * @param {boolean} isCalling
   * @param {boolean} hangsUp
   */
  labelOf(isCalling, hangsUp) {
    if (hangsUp) return 'End the call';
    return this.isHolding && isCalling ? 'Hold to talk' : 'Press and talk';
  }

  /** @private */
  toggle() {
    const { call, notice } = this.parts;
    notice.clear();
    if (this.talk.dataset.shows === 'end') void call.end();
    else void call.startTalking();
  }

  /** @private */
  press() {
    const { call, notice } = this.parts;
    notice.clear();
    if (!call.devices.hasMicrophone) void call.startTalking();
    call.pushToTalk.press();
  }

  /**
   * @private
   * @param {boolean} muted
   */
  setMuted(muted) {
    this.muted = muted;
    this.parts.call.devices.mute(muted);
    this.mute.setAttribute('aria-pressed', String(muted));
    this.showPhase(this.parts.call.phase);
  }

  /**
   * @private
   * @param {Preference[]} names of the changed preferences
   */
  onChange(names) {
    const { call, preferences } = this.parts;
    const { now } = preferences;
    if (names.includes('turns')) {
      this.button.letGo();
      call.pushToTalk.enable(this.isHolding);
      if (this.isHolding && this.muted) this.setMuted(false); // push-to-talk is silent when released
      this.showPhase(call.phase);
    }
    if (names.includes('agent')) void call.callAnother(urlOf(now.agent));
    if (names.some((name) => OF_DEVICES.includes(name))) {
      const { microphone, speaker, echoCancellation, noiseSuppression, autoGainControl } = now;
      const processing = { echoCancellation, noiseSuppression, autoGainControl };
      void call.chooseDevices({ microphone, speaker, ...processing });
    }
  }

  /** @private Another tab listens now. */
  giveUpMicrophone() {
    const { call, notice } = this.parts;
    if (!call.devices.hasMicrophone) return;
    this.button.letGo();
    call.dropMicrophone();
    this.showPhase(call.phase);
    notice.show('other-tab');
  }

  /** @private What the system does to them. */
  tellOfDevices() {
    const { call, notice } = this.parts;
    call.devices.addEventListener('hushed', (event) => {
      const { detail: isHushed } = /** @type {CustomEvent<boolean>} */ (event);
      if (isHushed) notice.show('microphone-hushed');
      else notice.clear('microphone-hushed');
    });
    call.devices.addEventListener('instead', (event) => {
      notice.show(`another-${/** @type {CustomEvent<string>} */ (event).detail}`);
    });
  }

  /** @private */
  showLevels() {
    this.parts.call.addEventListener('level', (event) => {
      const { source, level } = /** @type {CustomEvent} */ (event).detail;
      this.meters[/** @type {'caller' | 'agent'} */ (source)].show(level);
    });
  }

  /** @private Handle sleep, background tabs and other tabs. */
  stayAwake() {
    const { call } = this.parts;
    const look = () => {
      call.client.check();
      if (call.client.status.state === 'waiting') call.client.connect();
    };
    const watch = new SleepDetector(look);
    call.devices.addEventListener('batch', () => watch.heard());
    globalThis.addEventListener('online', look);
    document.addEventListener('visibilitychange', () => {
      if (document.hidden) return;
      void call.devices.resume();
      if (call.client.status.state === 'waiting') call.client.connect();
    });
  }

  /** @private Allowed in the browser's own settings: the problem is solved. */
  async watchPermission() {
    const status = await permission();
    status?.addEventListener('change', () => {
      const { notice } = this.parts;
      if (status.state === 'granted' && notice.code.startsWith('permission-')) notice.clear();
    });
  }
}

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

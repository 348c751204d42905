/**
 * User preferences, stored by the browser. Never contains a key.
 *
 * Other tabs use the same storage. Each change is merged into the stored value, so that no tab
 * reverts a change of another one.
 */

/**
 * @typedef {'auto' | 'low' | 'medium' | 'high' | 'silence' | 'hold'} TurnTaking how the end of the
 *   caller's turn is detected: by the end-of-turn model, with one of four eagernesses; by silence;
 *   by releasing push-to-talk
 *
 * @typedef {'auto' | 'websocket' | 'webrtc'} Connection of the next call; `auto`: by the line, see
 *   `webrtc/connection-choice.js`
 *
 * @typedef {object} Preferences
 * @property {string} agent empty: the agent in the page's address, or the server's default
 * @property {string} voice empty: the agent's own
 * @property {string} instructions empty: the agent's own
 * @property {TurnTaking} turns
 * @property {number} silenceMs wait when `turns` is `silence`
 * @property {string} microphone id of a device; empty: the system's choice
 * @property {string} speaker id of a device; empty: the system's choice
 * @property {boolean} echoCancellation
 * @property {boolean} noiseSuppression
 * @property {boolean} autoGainControl
 * @property {Connection} connection
 *
 * @typedef {keyof Preferences} Preference
 */

const STORED_AS = 'halfsec.settings';

/** @type {readonly TurnTaking[]} */
export const TURN_TAKING = ['auto', 'low', 'medium', 'high', 'silence', 'hold'];

/** @type {readonly Connection[]} */
export const CONNECTIONS = ['auto', 'websocket', 'webrtc'];

/** Limit of the server: longer instructions could not be prefilled in time. */
export const MAX_INSTRUCTIONS_CHARS = 65_536;

/** Limits of the server. Below one frame of its voice detector every syllable would end a turn. */
export const SILENCE_MS = { least: 32, most: 20_000 };

/** Maximum length of stored names. */
const MAX_NAME_CHARS = 512;

/** @type {Readonly<Preferences>} */
export const DEFAULTS = Object.freeze({
  agent: '',
  voice: '',
  instructions: '',
  turns: 'auto',
  silenceMs: 500,
  microphone: '',
  speaker: '',
  echoCancellation: true,
  noiseSuppression: true,
  autoGainControl: true,
  connection: 'auto',
});

/**
 * Parse stored preferences, which an older version of the page or the user may have written.
 * Invalid values are ignored.
 * @param {string | null} text
 * @returns {Preferences}
 */
export function parse(text) {
  /** @type {Preferences} */
  const preferences = { ...DEFAULTS };
  for (const [name, value] of Object.entries(objectIn(text))) {
    if (isValid(name, value)) Object.assign(preferences, { [name]: value });
  }
  return preferences;
}

/**
 * Validate the value of a preference.
 * @param {string} name
 * @param {unknown} value
 * @returns {boolean}
 */
export function isValid(name, value) {
  if (!Object.hasOwn(DEFAULTS, name)) return false;
  if (name === 'turns') return TURN_TAKING.some((way) => way === value);
  if (name === 'connection') return CONNECTIONS.some((each) => each === value);
  if (name === 'silenceMs') {
    const { least, most } = SILENCE_MS;
    return Number.isInteger(value) && Number(value) >= least && Number(value) <= most;
  }
  if (typeof value !== typeof DEFAULTS[/** @type {Preference} */ (name)]) return false;
  const most = name === 'instructions' ? MAX_INSTRUCTIONS_CHARS : MAX_NAME_CHARS;
  return typeof value !== 'string' || value.length <= most;
}

/** Events: `change` (detail: the names that have changed). */
export class PreferenceStore extends EventTarget {
  /**
   * @param {Storage | null} [storage] null when the browser forbids it: kept as long as the page
   */
  constructor(storage = browserStorage()) {
    super();
    /** @private */
    this.storage = storage;
    /** @type {Readonly<Preferences>} */
    this.now = this.load();
  }

  /** @param {Partial<Preferences>} wanted invalid values are ignored */
  change(wanted) {
    const sound = Object.entries(wanted).filter(([name, value]) => isValid(name, value));
    const changes = Object.fromEntries(sound);
    this.write({ ...this.load(), ...changes });
    this.become({ ...this.now, ...changes });
  }

  /** Reset all preferences to their defaults. */
  reset() {
    try {
      this.storage?.removeItem(STORED_AS);
    } catch {
      // A value that cannot be written was never stored.
    }
    this.become(DEFAULTS);
  }

  /**
   * @private
   * @param {Readonly<Preferences>} next
   */
  become(next) {
    const before = this.now;
    this.now = next;
    const names = /** @type {Preference[]} */ (Object.keys(DEFAULTS));
    const detail = names.filter((name) => next[name] !== before[name]);
    if (detail.length > 0) this.dispatchEvent(new CustomEvent('change', { detail }));
  }

  /** @private */
  load() {
    try {
      return this.storage ? parse(this.storage.getItem(STORED_AS)) : { ...(this.now ?? DEFAULTS) };
    } catch {
      return { ...(this.now ?? DEFAULTS) };
    }
  }

  /**
   * @private
   * @param {Preferences} preferences
   */
  write(preferences) {
    try {
      this.storage?.setItem(STORED_AS, JSON.stringify(preferences));
    } catch {
      // The storage is full or forbidden: preferences last as long as the page.
    }
  }
}

/**
 * @param {string | null} text
 * @returns {object}
 */
function objectIn(text) {
  try {
    const found = JSON.parse(text ?? '{}');
    return typeof found === 'object' && found !== null ? found : {};
  } catch {
    return {};
  }
}

/** @returns {Storage | null} */
function browserStorage() {
  try {
    return globalThis.localStorage ?? null;
  } catch {
    return null;
  }
}

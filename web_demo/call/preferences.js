/**
 * What the user has chosen, remembered by this browser. Never a key.
 *
 * Other tabs of the page remember in the same place. Each change is therefore written into what is
 * stored at that moment, so that no tab takes back what another one has changed.
 */

/**
 * @typedef {'auto' | 'low' | 'medium' | 'high' | 'silence' | 'hold'} TurnTaking how it is known that
 *   the caller has finished: by sense, with one of four eagernesses; by silence; by letting go
 *
 * @typedef {object} Preferences
 * @property {string} agent empty: whom the page's address names, or the server's default
 * @property {string} voice empty: the agent's own
 * @property {string} instructions empty: the agent's own
 * @property {TurnTaking} turns
 * @property {number} silenceMs waited for where `turns` is `silence`
 * @property {string} microphone id of a device; empty: the system's choice
 * @property {string} speaker id of a device; empty: the system's choice
 * @property {boolean} echoCancellation
 * @property {boolean} noiseSuppression
 * @property {boolean} autoGainControl
 *
 * @typedef {keyof Preferences} Preference
 */

const STORED_AS = 'halfsec.settings';

/** @type {readonly TurnTaking[]} */
export const TURN_TAKING = ['auto', 'low', 'medium', 'high', 'silence', 'hold'];

/** What the server takes (`agent/wire/realtime/`): longer instructions it could not read in time. */
export const MAX_INSTRUCTIONS_CHARS = 65_536;

/** What the server takes. Below one frame of its detector every syllable would end a turn. */
export const SILENCE_MS = { least: 32, most: 20_000 };

/** Names are no longer than that, whatever is found in the storage. */
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
});

/**
 * Preferences from whatever was stored, by an older version of the page or by somebody's hand: what
 * makes no sense is as if it were not there.
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
 * Whether a preference may have this value.
 * @param {string} name
 * @param {unknown} value
 * @returns {boolean}
 */
export function isValid(name, value) {
  if (!Object.hasOwn(DEFAULTS, name)) return false;
  if (name === 'turns') return TURN_TAKING.some((way) => way === value);
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
  /** @param {Storage | null} [storage] null where the browser forbids it: kept with the page */
  constructor(storage = browserStorage()) {
    super();
    /** @private */
    this.storage = storage;
    /** @type {Readonly<Preferences>} */
    this.now = this.load();
  }

  /** @param {Partial<Preferences>} wanted what makes no sense is left as it is */
  change(wanted) {
    const sound = Object.entries(wanted).filter(([name, value]) => isValid(name, value));
    const changes = Object.fromEntries(sound);
    this.write({ ...this.load(), ...changes });
    this.become({ ...this.now, ...changes });
  }

  /** Everything as it is at the first visit. */
  reset() {
    try {
      this.storage?.removeItem(STORED_AS);
    } catch {
      // What can't be written was never there.
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
      // The storage is full or forbidden: they last as long as the page.
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

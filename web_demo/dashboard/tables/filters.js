/**
 * Filters of the turns: time range, profile, server, session. They are kept in the address after the #,
 * with the open turn, so that a view can be bookmarked and shared.
 */

import { find } from '../renderer.js';

/**
 * @typedef {object} Range
 * @property {number | null} sinceMs since 1970
 * @property {number | null} untilMs null: up to now, including new turns
 */

const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86_400;

/** Lengths in seconds, by their names in the address. @type {Record<string, number>} */
const RANGES = {
  '15m': 15 * MINUTE_S,
  '1h': HOUR_S,
  '6h': 6 * HOUR_S,
  '24h': DAY_S,
  '7d': 7 * DAY_S,
  '30d': 30 * DAY_S,
  '90d': 90 * DAY_S,
};
const CUSTOM = 'custom';
const DEFAULT_RANGE = '24h';

/**
 * Maximum number of windows: the server sends at most a hundred, and partial ends take up to two
 * more.
 */
const MAX_WINDOWS = 97;
const WINDOWS_S = [10, 30, MINUTE_S, 300, 900, HOUR_S, 3 * HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S];

/** Pause that ends typing. */
const TYPING_MS = 400;

export class Filters {
  /**
   * @param {HTMLFormElement} form
   * @param {() => number} now the server's time in ms
   * @param {() => void} onChange
   */
  constructor(form, now, onChange) {
    /** @private */
    this.form = form;
    /** @private */
    this.now = now;
    /** @private */
    this.onChange = onChange;
    /** @private @type {HTMLSelectElement} */
    this.range = find(form, '#range');
    /** @private @type {HTMLSelectElement} */
    this.profile = find(form, '#profile');
    /** @private @type {HTMLSelectElement} */
    this.replica = find(form, '#replica');
    /** @private @type {HTMLInputElement} */
    this.session = find(form, '#session');
    /** @private @type {HTMLInputElement} */
    this.since = find(form, '#since');
    /** @private @type {HTMLInputElement} */
    this.until = find(form, '#until');
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.readAddress();
    form.addEventListener('change', () => this.changed());
    this.session.addEventListener('input', () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.changed(), TYPING_MS);
    });
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.changed();
    });
  }

  /** @returns {Range} */
  get stretch() {
    if (this.range.value !== CUSTOM) {
      const sinceMs = this.now() - 1000 * RANGES[this.range.value];
      return { sinceMs: Math.floor(sinceMs / 1000) * 1000, untilMs: null };
    }
    return { sinceMs: moment(this.since), untilMs: moment(this.until) };
  }

  /** True when turns that end now are included. */
  get isLive() {
    const { untilMs } = this.stretch;
    return untilMs === null || untilMs > this.now();
  }

  /**
   * Query parameters of the server's endpoints.
   * @returns {{since: string, until: string, profile: string, replica: string, session: string}}
   */
  get query() {
    const { sinceMs, untilMs } = this.stretch;
    return {
      since: String((sinceMs ?? 0) / 1000),
      until: untilMs === null ? '' : String(untilMs / 1000),
      profile: this.profile.value,
      replica: this.replica.value,
      session: this.session.value.trim(),
    };
  }

  /** Window length of the share over time, in s. */
  get windowS() {
    const { sinceMs, untilMs } = this.stretch;
    const lengthS = ((untilMs ?? this.now()) - (sinceMs ?? 0)) / 1000;
    return WINDOWS_S.find((each) => lengthS / each <= MAX_WINDOWS) ?? 100 * DAY_S;
  }

  /** @param {string} session */
  showSession(session) {
    this.session.value = session;
    this.changed();
  }

  /** @param {string[]} names names of the known profiles */
  offerProfiles(names) {
    offer(this.profile, names);
  }

  /**
   * Servers that share the store. Only one: there is nothing to choose.
   * @param {string[]} names
   */
  offerReplicas(names) {
    offer(this.replica, names);
    find(this.form, 'label:has(#replica)').hidden = this.replica.options.length < 3 && !this.replica.value;
  }

  /** @param {boolean} on true when the server can filter by time and profile */
  enableHistory(on) {
    for (const control of [this.range, this.profile, this.replica, this.since, this.until]) {
      control.disabled = !on;
    }
  }

  /** The turn in the address, as `session/number`; empty for none. */
  get openTurn() {
    return new URLSearchParams(location.hash.slice(1)).get('turn') ?? '';
  }

  /** @param {string} key of a turn, or empty */
  setOpenTurn(key) {
    this.writeAddress(key, key === '' ? 'replace' : 'push');
  }

  /** @private */
  changed() {
    clearTimeout(this.timer);
    this.showCustom();
    this.writeAddress(this.openTurn, 'replace');
    this.onChange();
  }

  /** @private */
  showCustom() {
    find(this.form, '#custom').hidden = this.range.value !== CUSTOM;
  }

  /**
   * Read the filters from the address.
   * @returns {boolean} true when the query changed
   */
  readAddress() {
    const { range: time, since, until, profile: budget, replica: server, session } = this;
    const controls = [time, since, until, budget, server, session];
    const before = controls.map(({ value }) => value).join('\n');
    const written = new URLSearchParams(location.hash.slice(1));
    const range = written.get('range') ?? DEFAULT_RANGE;
    this.range.value = range in RANGES || range === CUSTOM ? range : DEFAULT_RANGE;
    this.since.value = written.get('since') ?? '';
    this.until.value = written.get('until') ?? '';
    const profile = written.get('profile') ?? '';
    if (profile) this.offerProfiles([profile]);
    this.profile.value = profile;
    const replica = written.get('replica') ?? '';
    if (replica) offer(this.replica, [replica]);
    this.replica.value = replica;
    this.offerReplicas([]);
    this.session.value = written.get('session') ?? '';
    this.showCustom();
    return before !== controls.map(({ value }) => value).join('\n');
  }

  /**
   * @private
   * @param {string} turn
   * @param {'push' | 'replace'} how
   */
  writeAddress(turn, how) {
    const range = this.range.value;
    const isCustom = range === CUSTOM;
    const parts = {
      range: range === DEFAULT_RANGE ? '' : range,
      since: isCustom ? this.since.value : '',
      until: isCustom ? this.until.value : '',
      profile: this.profile.value,
      replica: this.replica.value,
      session: this.session.value.trim(),
      turn,
    };
    const written = new URLSearchParams(Object.entries(parts).filter(([, text]) => text));
    const target = `${location.pathname}${location.search}${written.size ? `#${written}` : ''}`;
    if (how === 'push') history.pushState(null, '', target);
    else history.replaceState(null, '', target);
  }
}

/**
 * Add the names that are not there yet.
 * @param {HTMLSelectElement} select
 * @param {string[]} names
 */
function offer(select, names) {
  const there = [...select.options].map(({ value }) => value);
  for (const name of names) {
    if (!there.includes(name)) select.append(new Option(name, name));
  }
}

/**
 * @param {HTMLInputElement} input of a local date and time
 * @returns {number | null}
 */
function moment(input) {
  const ms = Date.parse(input.value);
  return Number.isNaN(ms) ? null : ms;
}

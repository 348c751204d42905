/**
 * Which turns are looked at: a stretch of time, a profile, a session. They stand in the address
 * behind the #, with the turn that is open, so that a view can be kept and passed on.
 */

import { find } from '../renderer.js';

/**
 * @typedef {object} Range
 * @property {number | null} sinceMs since 1970
 * @property {number | null} untilMs null: now, and what comes
 */

const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86_400;

/** Lengths in seconds, by what stands in the address. @type {Record<string, number>} */
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

/** The server tells of a hundred windows at most; ends that are cut take up to two more. */
const MAX_WINDOWS = 97;
const WINDOWS_S = [10, 30, MINUTE_S, 300, 900, HOUR_S, 3 * HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S];

/** Typing is over when nothing came for so long. */
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

  /** Whether turns that end now belong to it. */
  get isLive() {
    const { untilMs } = this.stretch;
    return untilMs === null || untilMs > this.now();
  }

  /**
   * As the server's endpoints want them.
   * @returns {{since: string, until: string, profile: string, session: string}}
   */
  get query() {
    const { sinceMs, untilMs } = this.stretch;
    return {
      since: String((sinceMs ?? 0) / 1000),
      until: untilMs === null ? '' : String(untilMs / 1000),
      profile: this.profile.value,
      session: this.session.value.trim(),
    };
  }

  /** Length in seconds of the stretches that the share over time is drawn of. */
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

  /** @param {string[]} names of profiles that there are */
  offerProfiles(names) {
    const there = [...this.profile.options].map(({ value }) => value);
    for (const name of names) {
      if (!there.includes(name)) this.profile.append(new Option(name, name));
    }
  }

  /** @param {boolean} on whether the server can look for times and profiles */
  enableHistory(on) {
    for (const control of [this.range, this.profile, this.since, this.until]) {
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
   * Takes over what stands in the address.
   * @returns {boolean} whether other turns are wanted now
   */
  readAddress() {
    const controls = [this.range, this.since, this.until, this.profile, this.session];
    const before = controls.map(({ value }) => value).join('\n');
    const written = new URLSearchParams(location.hash.slice(1));
    const range = written.get('range') ?? DEFAULT_RANGE;
    this.range.value = range in RANGES || range === CUSTOM ? range : DEFAULT_RANGE;
    this.since.value = written.get('since') ?? '';
    this.until.value = written.get('until') ?? '';
    const profile = written.get('profile') ?? '';
    if (profile) this.offerProfiles([profile]);
    this.profile.value = profile;
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
 * @param {HTMLInputElement} input of a local date and time
 * @returns {number | null}
 */
function moment(input) {
  const ms = Date.parse(input.value);
  return Number.isNaN(ms) ? null : ms;
}

/**
 * Figures of the selected turns: summary, distributions, share over time, burn rates.
 *
 * They are computed by the server, and fetched when a turn has ended and once a minute. A server
 * that needs long for the response is asked less often: counting many turns takes time from its
 * calls.
 */

import { ServerError } from './api.js';
import { BURN_WINDOWS } from './burn-windows.js';

/**
 * @typedef {import('../charts/analysis.js').Figures} Figures
 * @typedef {import('../charts/trend.js').Share} Share
 * @typedef {import('../tables/filters.js').Filters} Filters
 */

const AFTER_TURN_MS = 2000;
const SELDOM_MS = 60_000;

/** At most a twentieth of the server's time is spent on this page. */
const REST_FACTOR = 20;

export class FiguresWatch {
  /**
   * @param {import('./api.js').Api} api
   * @param {Filters} filters
   * @param {object} listeners
   * @param {(figures: Figures) => void} listeners.onFigures
   * @param {(shares: Record<string, Share>) => void} listeners.onBurn
   * @param {(profiles: string[]) => void} listeners.onProfiles
   * @param {(replicas: string[]) => void} listeners.onReplicas servers that share the store
   * @param {(problem: string) => void} listeners.onProblem empty when there is none
   */
  constructor(api, filters, listeners) {
    /** @private */
    this.api = api;
    /** @private */
    this.filters = filters;
    /** @private */
    this.listeners = listeners;
    /** Whether the server keeps turns over time. */
    this.hasHistory = true;
    /** @private A turn has ended since they were asked for. */
    this.isStale = false;
    /** @private */
    this.tookMs = 0;
    /** @private */
    this.askedAt = 0;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @private @type {AbortController | null} */
    this.asking = null;
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden) void this.ask();
    });
  }

  /** A turn has ended: soon, but not for each one. */
  soon() {
    this.isStale = true;
    if (this.asking !== null || document.hidden) return;
    this.askIn(Math.max(0, this.askedAt + this.restMs - performance.now()));
  }

  /** At once, whatever is being asked. */
  async ask() {
    clearTimeout(this.timer);
    this.asking?.abort();
    if (document.hidden) return;
    this.isStale = false;
    const asking = (this.asking = new AbortController());
    const began = performance.now();
    try {
      await this.askAll(asking.signal);
      if (this.asking === asking) this.listeners.onProblem('');
    } catch (error) {
      if (this.asking === asking && error instanceof ServerError) {
        // Whether the server is there, and lets us in, the stream of events tells.
        const isOurs = ![0, 401, 403].includes(error.status);
        this.listeners.onProblem(isOurs ? error.message : '');
      }
    }
    if (this.asking !== asking) return;
    this.asking = null;
    this.askedAt = performance.now();
    this.tookMs = this.askedAt - began;
    this.askIn(this.isStale ? this.restMs : Math.max(SELDOM_MS, this.restMs));
  }

  /** @private */
  get restMs() {
    return Math.max(AFTER_TURN_MS, REST_FACTOR * this.tookMs);
  }

  /**
   * @private
   * @param {number} ms
   */
  askIn(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.ask(), ms);
  }

  /**
   * @private
   * @param {AbortSignal} signal
   */
  async askAll(signal) {
    const { query, windowS } = this.filters;
    const wanted = this.hasHistory ? { ...query, window: windowS } : { session: query.session };
    const answer = await this.api.json('v1/latency/summary', { ...wanted, histogram: 1 }, signal);
    this.listeners.onFigures({
      summary: answer.summary,
      histograms: answer.histograms ?? {},
      windows: answer.windows ?? null,
    });
    this.listeners.onProfiles(Object.keys(answer.profiles ?? {}));
    this.listeners.onReplicas(Object.keys(answer.replicas ?? {}).filter(Boolean));
    if (this.hasHistory) this.listeners.onBurn(await this.askBurn(signal));
  }

  /**
   * Of all turns, whatever is looked at: so the alerts have it.
   * @private
   * @param {AbortSignal} signal
   * @returns {Promise<Record<string, Share>>}
   */
  async askBurn(signal) {
    /** @type {Record<string, Share>} */
    const shares = {};
    for (const [name, seconds] of Object.entries(BURN_WINDOWS)) {
      const since = Math.floor(this.api.now() / 1000) - seconds;
      const { summary } = await this.api.json('v1/latency/summary', { since }, signal);
      shares[name] = { within: summary.within ?? null, answered: summary.answered };
    }
    return shares;
  }
}

/**
 * Loader of the charts and their library: both are fetched when the section scrolls into view, so
 * that the page loads fast.
 */

import { loadScript } from './load-script.js';
import { find } from '../renderer.js';

/**
 * @typedef {import('./distribution.js').Distribution} Distribution
 * @typedef {import('./distribution.js').Summary} Summary
 * @typedef {import('./distribution.js').Histograms} Histograms
 * @typedef {import('./trend.js').Trend} Trend
 * @typedef {import('./trend.js').Window} Window
 * @typedef {import('./trend.js').Share} Share
 * @typedef {{summary: Summary, histograms: Histograms, windows: Window[] | null}} Figures
 */

/** Pause before loading is tried again. */
const AGAIN_MS = 5000;

const UPLOT = 'vendor/uplot/uPlot.iife.min.js';

export class Analysis {
  /**
   * @param {HTMLElement} place section of all charts
   * @param {import('../renderer.js').Renderer} renderer
   * @param {import('../tables/engine.js').Engine} engine
   */
  constructor(place, renderer, engine) {
    /** @private */
    this.place = place;
    /** @private */
    this.renderer = renderer;
    /** @private */
    this.engine = engine;
    /** @private @type {Figures | null} */
    this.figures = null;
    /** @private @type {Record<string, Share>} */
    this.shares = {};
    /** @private @type {Distribution | null} */
    this.distribution = null;
    /** @private @type {Trend | null} */
    this.trend = null;
    const sight = new IntersectionObserver((entries) => {
      if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
      sight.disconnect();
      this.load().catch(() => setTimeout(() => sight.observe(place), AGAIN_MS));
    });
    sight.observe(place);
  }

  /** @param {Figures} figures */
  set(figures) {
    this.figures = figures;
    this.distribution?.set(figures.summary, figures.histograms);
    this.trend?.setWindows(figures.windows);
  }

  /** @param {Record<string, Share>} shares */
  setBurn(shares) {
    this.shares = shares;
    this.trend?.setBurn(shares);
  }

  /** Data of the distributions, for the export. */
  get histograms() {
    return this.figures?.histograms ?? {};
  }

  /** @private */
  async load() {
    await loadScript(UPLOT);
    const [{ Distribution }, { Trend }, { EngineChart }] = await Promise.all([
      import('./distribution.js'),
      import('./trend.js'),
      import('./engine-chart.js'),
    ]);
    this.distribution = new Distribution(find(this.place, '#distribution'), this.renderer);
    this.trend = new Trend(find(this.place, '#trend'), this.renderer);
    new EngineChart(find(this.place, '#engine .plot'), this.renderer, this.engine);
    if (this.figures !== null) this.set(this.figures);
    this.trend.setBurn(this.shares);
  }
}

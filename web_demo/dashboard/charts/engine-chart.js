/**
 * Used pages of the KV cache over the last ten minutes, with the limit above which it is too full.
 */

import { axes, Chart, moments, rule } from './chart.js';
import { PAGES_LINE } from '../tables/engine.js';
import { percent } from '../data/format.js';

export class EngineChart {
  /**
   * @param {HTMLElement} place
   * @param {import('../renderer.js').Renderer} renderer
   * @param {import('../tables/engine.js').Engine} engine
   */
  constructor(place, renderer, engine) {
    const chart = new Chart(place, renderer, (colour) => ({
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: [0, 1] } },
      series: [
        {},
        {
          stroke: colour('stage-llm_clause'),
          fill: `${colour('stage-llm_clause')}33`,
          width: 2,
          points: { show: false },
        },
      ],
      axes: axes(colour).map((axis, index) =>
        index === 0
          ? { ...axis, values: moments }
          : { ...axis, values: (_, at) => at.map((each) => percent(each)) },
      ),
      hooks: {
        draw: [
          (plot) =>
            rule(plot, { y: PAGES_LINE, text: percent(PAGES_LINE), colour: colour('bad'), dash: [5, 4] }),
        ],
      },
    }));
    const show = () => {
      const [times, shares] = engine.pages;
      const last = shares[shares.length - 1];
      const label = `Pages of the cache in use: ${percent(last)}; the line stands at ${percent(PAGES_LINE)}.`;
      chart.set(times.length > 1 ? [times, shares] : null, label);
    };
    engine.onPages = show;
    show();
  }
}

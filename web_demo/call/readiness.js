/**
 * Readiness of the server: polls `/readyz` once a second until it is ready.
 *
 * A server that has just been started listens before its models are warm, so the first page view
 * shows progress rather than an error.
 */

/**
 * @typedef {object} Readiness
 * @property {boolean} ready
 * @property {string} status `ready`, `degraded`, `warming`, `draining`..., or `gone` for no answer
 * @property {Stage[]} stages
 * @property {boolean} needsKey
 * @property {string} model what answers, and why; empty where the server does not tell
 *
 * @typedef {object} Stage
 * @property {string} label
 * @property {string} state in words
 * @property {number | null} share completed part of the work, 0 to 1; null when unknown
 */

/** @type {Record<string, string>} */
const LABELS = {
  vad: 'Speech detector',
  asr: 'Recognition',
  turn: 'End of turn',
  llm: 'Language model',
  'small llm': 'Smaller language model',
};

const ASK_EVERY_MS = 1000;

export class ReadinessWatch {
  /** @param {(readiness: Readiness) => void} onChange called with every answer */
  constructor(onChange) {
    /** @private */
    this.onChange = onChange;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @private */
    this.watching = false;
  }

  /** Poll until the server is ready. */
  start() {
    if (this.watching) return;
    this.watching = true;
    void this.ask();
  }

  stop() {
    this.watching = false;
    clearTimeout(this.timer);
  }

  /** @private */
  async ask() {
    const readiness = await askOnce();
    if (!this.watching) return;
    if (readiness.ready) this.stop();
    else this.timer = setTimeout(() => void this.ask(), ASK_EVERY_MS);
    this.onChange(readiness);
  }
}

/** @returns {Promise<Readiness>} */
async function askOnce() {
  try {
    const response = await fetch('readyz', { cache: 'no-store' });
    const body = await response.json();
    const stages = Object.entries(body.stages ?? {}).map(([name, state]) =>
      stageOf(name, String(state)),
    );
    const needsKey = body.needs_key === true;
    const model = modelOf(body.model);
    return { ready: response.ok, status: body.status ?? 'ready', stages, needsKey, model };
  } catch {
    return { ready: false, status: 'gone', stages: [], needsKey: false, model: '' };
  }
}

/**
 * @param {{name?: unknown, preset?: unknown, why?: unknown} | undefined} model
 * @returns {string}
 */
function modelOf(model) {
  if (!model) return '';
  const why = model.why ? `: ${String(model.why)}` : '';
  return `${String(model.name)} answers (preset ${String(model.preset)}${why})`;
}

/**
 * @param {string} name
 * @param {string} state a word, and perhaps how far: "loading: 40 % of the weights converted"
 * @returns {Stage}
 */
export function stageOf(name, state) {
  const percent = /(\d+) %/.exec(state);
  const share = state === 'ready' ? 1 : percent ? Number(percent[1]) / 100 : null;
  const label = LABELS[name] ?? name.charAt(0).toUpperCase() + name.slice(1);
  return { label, state: percent ? `${percent[1]} %` : state, share };
}

/**
 * Is the server ready? Asked at `/readyz` once a second until it says yes.
 *
 * A server that has just been started listens before its models are warm, so the first page view
 * shows progress rather than an error.
 */

/**
 * @typedef {object} Readiness
 * @property {boolean} ready
 * @property {string} status `ready`, `degraded`, `warming`, `draining`..., or `gone` for no answer
 * @property {{name: string, state: string}[]} stages
 * @property {boolean} needsKey
 */

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

  /** Ask until the server is ready. */
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
    const stages = Object.entries(body.stages ?? {}).map(([name, state]) => ({
      name,
      state: describe(state),
    }));
    const needsKey = body.needs_key === true;
    return { ready: response.ok, status: body.status ?? 'ready', stages, needsKey };
  } catch {
    return { ready: false, status: 'gone', stages: [], needsKey: false };
  }
}

/**
 * @param {unknown} state a word, or an object with a word and perhaps a share in it
 * @returns {string}
 */
function describe(state) {
  if (typeof state === 'boolean') return state ? 'ready' : 'warming';
  if (typeof state === 'number') return `${Math.round(100 * state)} %`;
  if (typeof state !== 'object' || state === null) return String(state);
  const { status, progress } = /** @type {{status?: string, progress?: number}} */ (state);
  return progress === undefined ? (status ?? '') : describe(progress);
}

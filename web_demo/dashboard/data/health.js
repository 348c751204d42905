/** Health of the server: polls `/readyz`, often while it is not ready, rarely when it is. */

/**
 * @typedef {object} Health
 * @property {'ready' | 'degraded' | 'warming' | 'draining' | 'broken' | 'failed' | 'gone'} status
 * @property {{name: string, state: string}[]} stages
 * @property {string[]} problems of parts that no call needs
 * @property {boolean} needsKey
 */

const SOON_MS = 1000;
const LATER_MS = 15_000;

/** Fields of `/readyz` that are no problems. */
const FACTS = new Set(['status', 'stages', 'calls', 'needs_key', 'model']);

export class HealthWatch {
  /** @param {(health: Health) => void} onAnswer */
  constructor(onAnswer) {
    /** @private */
    this.onAnswer = onAnswer;
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden) void this.ask();
    });
  }

  /** Poll now and regularly, except in a hidden tab. */
  async ask() {
    clearTimeout(this.timer);
    const health = await askOnce();
    clearTimeout(this.timer);
    const isWell = health.status === 'ready' || health.status === 'degraded';
    if (!document.hidden) {
      this.timer = setTimeout(() => void this.ask(), isWell ? LATER_MS : SOON_MS);
    }
    this.onAnswer(health);
  }
}

/**
 * Problems in an answer of `/readyz`: a text, or texts by the part of it that has the problem.
 * @param {Record<string, unknown>} body
 * @returns {string[]}
 */
export function problemsOf(body) {
  const fields = Object.entries(body).filter(([name]) => !FACTS.has(name));
  return fields.flatMap(([name, problem]) => {
    if (typeof problem !== 'object' || problem === null) return [`${name}: ${problem}`];
    return Object.entries(problem).map(([part, why]) => `${name}: ${part}: ${why}`);
  });
}

/** @returns {Promise<Health>} */
async function askOnce() {
  try {
    const answer = await fetch('readyz', { cache: 'no-store' });
    const body = await answer.json();
    const stages = Object.entries(body.stages ?? {});
    return {
      status: body.status ?? 'ready',
      stages: stages.map(([name, state]) => ({ name, state: String(state) })),
      problems: problemsOf(body),
      needsKey: body.needs_key === true,
    };
  } catch {
    return { status: 'gone', stages: [], problems: [], needsKey: false };
  }
}

/**
 * HTTP client of the dashboard: requests with the key where the server requires one, and the
 * server's clock.
 */

/** @typedef {Record<string, string | number | null | undefined>} Query */

/** Error response of the server, with its message. */
export class ServerError extends Error {
  /**
   * @param {number} status HTTP status; 0 without a response
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The clock is adjusted when the offset exceeds the resolution of the Date header. */
const CLOCK_SLACK_MS = 1500;

export class Api {
  /** @param {import('../../call/access.js').Access} access */
  constructor(access) {
    /** @private */
    this.access = access;
    /** @private @type {number | null} */
    this.clockStart = null;
  }

  /**
   * Server's time in ms since 1970, independent of the local clock.
   * @returns {number}
   */
  now() {
    return this.clockStart === null ? Date.now() : this.clockStart + performance.now();
  }

  /**
   * @param {string} path
   * @param {Query} [query] null and empty values are left out
   * @param {AbortSignal} [signal]
   * @returns {Promise<any>} Raises ServerError, or the signal's AbortError
   */
  async json(path, query = {}, signal = undefined) {
    const answer = await this.open(address(path, query), { signal });
    try {
      return await answer.json();
    } catch (error) {
      throw signal?.aborted ? error : new ServerError(0, 'The answer broke off.');
    }
  }

  /**
   * @param {string} path
   * @param {RequestInit} [init]
   * @returns {Promise<Response>} a successful response. Raises as `json`.
   */
  async open(path, init = {}) {
    /** @type {Response} */
    let answer;
    try {
      answer = await this.access.fetch(path, { cache: 'no-store', ...init });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      if (error instanceof TypeError) throw new ServerError(0, 'The server does not answer.');
      throw new ServerError(401, 'This server needs a key.');
    }
    this.setClock(answer.headers.get('date'));
    if (!answer.ok) throw new ServerError(answer.status, await reason(answer));
    return answer;
  }

  /**
   * @private
   * @param {string | null} date
   */
  setClock(date) {
    const serverMs = Date.parse(date ?? '');
    if (Number.isNaN(serverMs)) return;
    if (this.clockStart === null || Math.abs(serverMs - this.now()) > CLOCK_SLACK_MS) {
      this.clockStart = serverMs - performance.now();
    }
  }
}

/**
 * @param {string} path
 * @param {Query} query
 */
function address(path, query) {
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const written = known.map(([name, value]) => [name, String(value)]).filter(([, text]) => text);
  return written.length === 0 ? path : `${path}?${new URLSearchParams(written)}`;
}

/** @param {Response} answer */
async function reason(answer) {
  try {
    return String((await answer.json()).error.message);
  } catch {
    return `The server answers ${answer.status} ${answer.statusText}.`;
  }
}

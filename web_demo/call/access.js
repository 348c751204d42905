/**
 * API key of a server that requires one: asked for once, kept as long as the tab, never in a URL.
 *
 * The key itself only goes into the Authorization header of requests. For the voice socket, where
 * browsers can set no header, each connection gets a client secret (`ek_...`) made with it.
 */

const STORED_AS = 'halfsec.key';
const WRONG_KEY = 'This key does not work here. It may be mistyped, expired or revoked.';

export class Access {
  /**
   * @param {(problem: string) => Promise<string>} ask for a key; rejects when the user gives none
   */
  constructor(ask) {
    /** @private */
    this.ask = ask;
    /** True when the server required a key at the last request. */
    this.needed = false;
    /** @private @type {string | null} */
    this.key = stored()?.getItem(STORED_AS) ?? null;
    /** @private @type {Promise<string> | null} */
    this.asking = null;
  }

  /**
   * `fetch` with the key, which is asked for when the server requires one: once, however many
   * requests wait for it. A response that is refused in spite of the key is returned.
   * @param {string} path
   * @param {RequestInit} [init]
   * @returns {Promise<Response>} rejects as `fetch` does, and when the user gives no key
   */
  async fetch(path, init = {}) {
    const tried = this.key ?? (this.needed ? await this.rightKey('') : null);
    const answer = await withKey(path, init, tried);
    if (answer.status !== 401) return answer;
    if (tried !== null && this.key === tried) this.remember(null);
    this.needed = true;
    const key = this.key ?? (await this.rightKey(tried === null ? '' : WRONG_KEY));
    return withKey(path, init, key);
  }

  /** Forget the key; the next request asks for another one. */
  forget() {
    this.remember(null);
  }

  /**
   * Ask until a key works. It is tried before it is given to waiting requests.
   * @private
   * @param {string} problem
   * @returns {Promise<string>}
   */
  rightKey(problem) {
    const ask = async () => {
      for (;;) {
        const key = await this.ask(problem);
        const answer = await withKey('v1/sessions', {}, key);
        if (answer.status !== 401) {
          this.remember(key);
          return key;
        }
        problem = WRONG_KEY;
      }
    };
    this.asking ??= ask().finally(() => {
      this.asking = null;
    });
    return this.asking;
  }

  /**
   * Client secret for a voice socket; null when the server needs none. Asks until the key is valid.
   * @returns {Promise<string | null>}
   */
  async secret() {
    if (!this.needed) return null;
    let problem = '';
    for (;;) {
      const key = this.key ?? (await this.ask(problem));
      const answer = await fetch('v1/realtime/client_secrets', {
        method: 'POST',
        headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' },
        body: '{}',
      });
      if (answer.status === 401) {
        this.remember(null);
        problem = WRONG_KEY;
        continue;
      }
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.error?.message ?? `HTTP ${answer.status}`);
      this.remember(key);
      return body.value;
    }
  }

  /**
   * Response to this key, or to none. Does not ask the user.
   * @param {string} path
   * @returns {Promise<Response>}
   */
  get(path) {
    const headers = this.key === null ? undefined : { Authorization: `Bearer ${this.key}` };
    return fetch(path, { headers, cache: 'no-store' });
  }

  /**
   * @private
   * @param {string | null} key
   */
  remember(key) {
    this.key = key;
    if (key === null) stored()?.removeItem(STORED_AS);
    else stored()?.setItem(STORED_AS, key);
  }
}

/**
 * @param {string} path
 * @param {RequestInit} init
 * @param {string | null} key
 */
function withKey(path, init, key) {
  const headers = new Headers(init.headers);
  if (key !== null) headers.set('Authorization', `Bearer ${key}`);
  return fetch(path, { ...init, headers });
}

/**
 * @returns {Storage | null} null when the browser forbids it: the key then lives as long as the
 * page
 */
function stored() {
  try {
    return globalThis.sessionStorage ?? null;
  } catch {
    return null;
  }
}

/**
 * The key of a server that asks for one: asked once, kept as long as the tab, never in a URL.
 *
 * The key itself only goes into the Authorization header of requests. For the voice socket, where
 * browsers can set no header, each connection gets a client secret (`ek_...`) made with it.
 */

const STORED_AS = 'halfsec.key';

export class Access {
  /** @param {(problem: string) => Promise<string>} ask for a key; rejects where none is given */
  constructor(ask) {
    /** @private */
    this.ask = ask;
    /** Whether the server wants a key, as it said last. */
    this.needed = false;
    /** @private @type {string | null} */
    this.key = stored()?.getItem(STORED_AS) ?? null;
  }

  /**
   * What to open a voice socket with: null at an open server. Asks until the key is right.
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
        problem = 'This key does not work here. It may be mistyped, expired or revoked.';
        continue;
      }
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.error?.message ?? `HTTP ${answer.status}`);
      this.remember(key);
      return body.value;
    }
  }

  /**
   * What the server answers to this key, or to none: nobody is asked for one.
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

/** @returns {Storage | null} null where the browser forbids it: the key then lives with the page */
function stored() {
  try {
    return globalThis.sessionStorage ?? null;
  } catch {
    return null;
  }
}

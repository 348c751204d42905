/**
 * Why the server does not take a call. A browser hides from a page with what status a WebSocket was
 * refused; asked the same without an upgrade, the server gives the same answer, which can be read.
 */

/**
 * @typedef {object} Refusal
 * @property {string} code
 * @property {string} message the server's words
 * @property {number | null} retryInS when it says to come back
 */

/** Not refused: it only has to come as a WebSocket. */
const UPGRADE_REQUIRED = 426;

/**
 * @param {string} socketUrl that was refused
 * @param {(path: string) => Promise<Response>} get with the key, if there is one
 * @returns {Promise<Refusal | null>} null where it would be taken now, or nobody knows
 */
export async function askWhyRefused(socketUrl, get) {
  const url = new URL(socketUrl);
  url.protocol = url.protocol === 'wss:' ? 'https:' : 'http:';
  url.searchParams.delete('resume');
  try {
    const answer = await get(url.href);
    if (answer.status === UPGRADE_REQUIRED || answer.ok) return null;
    const { error } = await answer.json();
    if (typeof error?.message !== 'string') return null;
    const wait = Number.parseInt(answer.headers.get('Retry-After') ?? '', 10);
    return {
      code: String(error.code ?? ''),
      message: error.message,
      retryInS: Number.isFinite(wait) ? wait : null,
    };
  } catch {
    return null;
  }
}

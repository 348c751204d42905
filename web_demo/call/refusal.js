/**
 * Reason for which the server rejected a call. Browsers hide the HTTP status of a rejected
 * WebSocket from the page; the same request without an upgrade gets the same answer, which can be
 * read.
 */

/**
 * @typedef {object} Refusal
 * @property {string} code
 * @property {string} message message of the server
 * @property {number | null} retryInS from Retry-After
 */

/** Status of an accepted request that lacks the WebSocket upgrade. */
const UPGRADE_REQUIRED = 426;

/**
 * @param {string} socketUrl URL of the rejected socket
 * @param {(path: string) => Promise<Response>} get request with the key, if there is one
 * @returns {Promise<Refusal | null>} null when the call would be accepted now, or the reason is
 *   unknown
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

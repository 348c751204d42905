/**
 * Audio of one turn, from the call's recording. Only that range is fetched: the recording of an
 * hour has hundreds of megabytes.
 */

import { ServerError } from './api.js';

/** Margin before and after the turn. */
const MARGIN_S = 0.5;

/** Size of the header of the server's WAV files, with room for chunks before the samples. */
const HEAD_BYTES = 1024;
const WAV_HEAD_BYTES = 44;

/**
 * @typedef {object} Format
 * @property {number} dataStart in bytes
 * @property {number} bytesPerS
 * @property {number} blockBytes of one sample of all channels
 * @property {Uint8Array} fmt the chunk that describes the samples, 16 bytes
 */

/**
 * @param {import('./api.js').Api} api
 * @param {string} session
 * @param {{from_s: number, to_s: number}} stretch
 * @param {string | null} [at] when the turn ended: a call may be recorded in several files
 * @returns {Promise<Blob>} a WAV file. Raises ServerError.
 */
export async function soundOf(api, session, { from_s, to_s }, at) {
  const query = at ? `?at=${encodeURIComponent(at)}` : '';
  const path = `v1/sessions/${encodeURIComponent(session)}/recording${query}`;
  const format = formatOf(await bytes(api, path, 0, HEAD_BYTES));
  const place = (/** @type {number} */ seconds) =>
    Math.floor((Math.max(0, seconds) * format.bytesPerS) / format.blockBytes) * format.blockBytes;
  const first = place(from_s - MARGIN_S);
  const length = Math.max(format.blockBytes, place(to_s + MARGIN_S) - first);
  const samples = await bytes(api, path, format.dataStart + first, length);
  return new Blob([wavHead(format.fmt, samples.length), samples], { type: 'audio/wav' });
}

/**
 * @param {import('./api.js').Api} api
 * @param {string} path
 * @param {number} start
 * @param {number} length at most
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
async function bytes(api, path, start, length) {
  const headers = { Range: `bytes=${start}-${start + length - 1}` };
  const answer = await api.open(path, { headers });
  const found = new Uint8Array(await answer.arrayBuffer());
  return answer.status === 206 ? found : found.slice(start, start + length);
}

/**
 * @param {Uint8Array} head of a WAV file
 * @returns {Format} Raises ServerError where it is none.
 */
function formatOf(head) {
  const view = new DataView(head.buffer, head.byteOffset, head.byteLength);
  /** @type {Uint8Array | null} */
  let fmt = null;
  for (let at = 12; at + 8 <= head.length; ) {
    const name = String.fromCharCode(...head.subarray(at, at + 4));
    const size = view.getUint32(at + 4, true);
    if (name === 'fmt ') fmt = head.slice(at + 8, at + 24);
    if (name === 'data' && fmt !== null) {
      const described = new DataView(fmt.buffer);
      return {
        dataStart: at + 8,
        bytesPerS: described.getUint32(8, true),
        blockBytes: described.getUint16(12, true),
        fmt,
      };
    }
    at += 8 + size + (size % 2);
  }
  throw new ServerError(0, 'The recording can’t be read: it is no WAV file.');
}

/**
 * @param {Uint8Array} fmt
 * @param {number} dataBytes
 * @returns {Uint8Array<ArrayBuffer>}
 */
function wavHead(fmt, dataBytes) {
  const head = new Uint8Array(WAV_HEAD_BYTES);
  const view = new DataView(head.buffer);
  const put = (/** @type {number} */ at, /** @type {string} */ text) =>
    head.set([...text].map((letter) => letter.charCodeAt(0)), at);
  put(0, 'RIFF');
  view.setUint32(4, WAV_HEAD_BYTES - 8 + dataBytes, true);
  put(8, 'WAVEfmt ');
  view.setUint32(16, fmt.length, true);
  head.set(fmt, 20);
  put(36, 'data');
  view.setUint32(40, dataBytes, true);
  return head;
}

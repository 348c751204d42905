/**
 * Asking the browser for a microphone, and what its refusals mean.
 */

/**
 * @typedef {object} Choice
 * @property {string} microphone id of the device; empty: the system's choice
 * @property {boolean} echoCancellation
 * @property {boolean} noiseSuppression
 * @property {boolean} autoGainControl
 */

/** Errors of `getUserMedia` and the problem (see `problems.js`) each stands for. */
const PROBLEMS = /** @type {Record<string, string>} */ ({
  SecurityError: 'permission-denied',
  NotFoundError: 'no-microphone',
  OverconstrainedError: 'no-microphone',
  NotReadableError: 'microphone-busy',
  AbortError: 'microphone-busy',
});

/** What browsers say when the device that was asked for is not there. */
const NOT_THERE = new Set(['OverconstrainedError', 'NotFoundError']);

export class CaptureError extends Error {
  /** @param {string} code a key of `problems.js` */
  constructor(code) {
    super(code);
    this.code = code;
  }
}

/**
 * @param {Choice} choice
 * @returns {Promise<{stream: MediaStream, isChosen: boolean}>} not the chosen one: it is not there,
 *   and the system has chosen another
 * @throws {CaptureError}
 */
export async function requestMicrophone({ microphone, ...processing }) {
  if (!navigator.mediaDevices?.getUserMedia) throw new CaptureError('insecure-context');
  const { echoCancellation, noiseSuppression, autoGainControl } = processing;
  const audio = { echoCancellation, noiseSuppression, autoGainControl };
  try {
    const chosen = microphone ? { ...audio, deviceId: { exact: microphone } } : audio;
    return { stream: await ask(chosen), isChosen: true };
  } catch (error) {
    if (!(microphone && NOT_THERE.has(nameOf(error)))) throw await problemOf(error);
  }
  try {
    return { stream: await ask(audio), isChosen: false };
  } catch (error) {
    throw await problemOf(error);
  }
}

/** @param {MediaTrackConstraints} audio */
function ask(audio) {
  return navigator.mediaDevices.getUserMedia({ audio });
}

/** @param {unknown} error */
function nameOf(error) {
  return error instanceof Error ? error.name : '';
}

/**
 * @param {unknown} error of `getUserMedia`
 * @returns {Promise<CaptureError>}
 */
async function problemOf(error) {
  const name = nameOf(error);
  if (name !== 'NotAllowedError') return new CaptureError(PROBLEMS[name] ?? 'microphone-busy');
  // Three causes under one name; Chromium tells them apart in words, others by the state.
  const words = error instanceof Error ? error.message : '';
  if (/system/i.test(words)) return new CaptureError('permission-system');
  if (/dismissed/i.test(words)) return new CaptureError('permission-dismissed');
  if (/denied/i.test(words)) return new CaptureError('permission-denied');
  const asksAgain = (await permission())?.state === 'prompt';
  return new CaptureError(asksAgain ? 'permission-dismissed' : 'permission-denied');
}

/** @returns {Promise<PermissionStatus | null>} null where the browser does not tell */
export async function permission() {
  try {
    return await navigator.permissions.query({ name: 'microphone' });
  } catch {
    return null;
  }
}

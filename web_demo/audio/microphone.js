/**
 * Request for a microphone, and the meaning of the browser's errors.
 */

/**
 * @typedef {object} Choice
 * @property {string} microphone id of the device; empty: the system's choice
 * @property {boolean} echoCancellation
 * @property {boolean} noiseSuppression
 * @property {boolean} autoGainControl
 */

/** Errors of `getUserMedia`, each with its problem code (see `ui/problems.js`). */
const PROBLEMS = /** @type {Record<string, string>} */ ({
  SecurityError: 'permission-denied',
  NotFoundError: 'no-microphone',
  OverconstrainedError: 'no-microphone',
  NotReadableError: 'microphone-busy',
  AbortError: 'microphone-busy',
});

/** Errors of browsers when the requested device is missing. */
const NOT_THERE = new Set(['OverconstrainedError', 'NotFoundError']);

export class CaptureError extends Error {
  /** @param {string} code a key of PROBLEMS in `ui/problems.js` */
  constructor(code) {
    super(code);
    this.code = code;
  }
}

/**
 * @param {Choice} choice
 * @returns {Promise<{stream: MediaStream, isChosen: boolean}>} `isChosen` is false when the chosen
 *   device is missing and the system chose another
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
  // One error name has three causes; Chromium distinguishes them in the message, others by the state.
  const words = error instanceof Error ? error.message : '';
  if (/system/i.test(words)) return new CaptureError('permission-system');
  if (/dismissed/i.test(words)) return new CaptureError('permission-dismissed');
  if (/denied/i.test(words)) return new CaptureError('permission-denied');
  const asksAgain = (await permission())?.state === 'prompt';
  return new CaptureError(asksAgain ? 'permission-dismissed' : 'permission-denied');
}

/** @returns {Promise<PermissionStatus | null>} null when the browser does not report it */
export async function permission() {
  try {
    return await navigator.permissions.query({ name: 'microphone' });
  } catch {
    return null;
  }
}

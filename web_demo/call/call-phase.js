/** Phase of a call, derived from the activity of its parts. */

/**
 * @typedef {'off' | 'asking' | 'connecting' | 'ready' | 'listening' | 'hearing' | 'thinking' |
 *   'speaking'} Phase
 *
 * @typedef {object} Work
 * @property {boolean} asking for the microphone
 * @property {boolean} hearing the caller speak
 * @property {boolean} thinking
 * @property {boolean} responding a reply is being generated
 */

/**
 * Activity implied by each server event.
 * @type {Record<string, Partial<Work>>}
 */
export const CHANGES = {
  'input_audio_buffer.speech_started': { hearing: true, thinking: false },
  'input_audio_buffer.speech_stopped': { hearing: false, thinking: true },
  'response.created': { thinking: true, responding: true },
  'response.done': { thinking: false, responding: false },
};

/**
 * @param {Work} is
 * @param {import('./realtime-client.js').Status['state']} state of the connection
 * @param {{speaking: boolean, hasMicrophone: boolean}} devices
 * @returns {Phase}
 */
export function phaseOf(is, state, { speaking, hasMicrophone }) {
  if (is.asking) return 'asking';
  if (state === 'closed') return 'off';
  if (state !== 'open') return 'connecting';
  if (is.hearing) return 'hearing';
  if (speaking) return 'speaking';
  if (is.thinking) return 'thinking';
  return hasMicrophone ? 'listening' : 'ready';
}

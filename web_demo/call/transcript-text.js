/**
 * Transcript of a call as Markdown: speaker, time, text, and the words that were not heard. Pure.
 */

/** @typedef {import('./call-log.js').Line} Line */

const SPEAKERS = { caller: 'You', agent: 'Agent' };

/**
 * @param {object} entries
 * @param {Line[]} entries.lines
 * @param {Date} entries.beganAt
 * @param {string[]} entries.sessions
 * @param {boolean} entries.hasForgotten
 * @param {number} soundFromMs start of the recording, in ms of the call
 * @returns {string}
 */
export function transcriptText({ lines, beganAt, sessions, hasForgotten }, soundFromMs) {
  const head = [`# Call of ${beganAt.toLocaleString()}`, ''];
  if (sessions.length > 0) head.push(`Session: ${sessions.join(', ')}`, '');
  head.push('Times count from the beginning of the call. Words that were not heard are ~~struck~~.');
  if (soundFromMs > 0) head.push(`The recording begins at ${clock(soundFromMs)}.`);
  if (hasForgotten) head.push('The beginning is missing: the page keeps the last lines only.');
  const entryTexts = lines.map(lineText).filter((text) => text !== '');
  return [...head, '', ...entryTexts, ''].join('\n');
}

/**
 * @param {Line} line
 * @returns {string}
 */
function lineText({ atMs, message, note, waitMs }) {
  if (!message) return `- ${clock(atMs)} *${escaped(note)}*`;
  const { role, text, sureChars, state } = message;
  const wait = waitMs === null ? '' : ` (after ${Math.round(waitMs)} ms)`;
  const said = state === 'cut' ? cutText(text, sureChars) : escaped(text);
  if (!said) return '';
  const rest = state === 'live' ? ' …' : state === 'unsent' ? ' (not sent)' : '';
  return `- ${clock(atMs)} **${SPEAKERS[role]}**${wait}: ${said}${rest}`;
}

/**
 * @param {string} text
 * @param {number} heardChars
 */
function cutText(text, heardChars) {
  const unheard = escaped(text.slice(heardChars));
  const heard = escaped(text.slice(0, heardChars));
  return `${heard}${unheard && ` ~~${unheard}~~`} (interrupted)`.trim();
}

/**
 * @param {number} ms
 * @returns {string} minutes, seconds and tenths
 */
function clock(ms) {
  const tenths = Math.floor(ms / 100);
  const seconds = String(Math.floor(tenths / 10) % 60).padStart(2, '0');
  return `${String(Math.floor(tenths / 600)).padStart(2, '0')}:${seconds}.${tenths % 10}`;
}

/** @param {string} text made one line, with Markdown escaped */
function escaped(text) {
  return text
    .trim()
    .replace(/\s+/g, ' ')
    .replace(/[\\`*_~[\]<>#|]/g, '\\$&');
}

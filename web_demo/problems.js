/** Everything that can go wrong, in the words of someone who wants to talk, with the way out. */

/**
 * @typedef {'talk' | 'resume' | 'reconnect' | 'dismiss'} Action
 *
 * @typedef {object} Problem
 * @property {string} title
 * @property {string} text what to do about it
 * @property {Action} action what its button does
 * @property {string} label of the button
 * @property {boolean} [mild] nothing is broken: a note rather than an alarm
 */

/** @type {Record<string, Problem>} */
export const PROBLEMS = {
  'permission-denied': {
    title: 'The microphone is blocked',
    text:
      'Your browser does not let this page listen. Open the site settings beside the address, ' +
      'allow the microphone, and try again. You can also type below.',
    action: 'talk',
    label: 'Try again',
  },
  'no-microphone': {
    title: 'No microphone found',
    text: 'Plug one in and try again. Until then, type below or play the sample question.',
    action: 'talk',
    label: 'Try again',
  },
  'microphone-busy': {
    title: 'The microphone is in use',
    text: 'Another program holds it. Close that program, or choose another microphone, and try again.',
    action: 'talk',
    label: 'Try again',
  },
  'microphone-lost': {
    title: 'The microphone went away',
    text: 'It was unplugged or taken by another program. The call is still open.',
    action: 'talk',
    label: 'Use the microphone again',
  },
  'insecure-context': {
    title: 'This address cannot use a microphone',
    text:
      'Browsers allow a microphone only on https:// pages and on localhost. Open this page at ' +
      'http://localhost, or put https in front of the server. Typing works here all the same.',
    action: 'dismiss',
    label: 'I will type',
  },
  'sound-suspended': {
    title: 'Your browser is holding the sound back',
    text: 'It wants to see a click before a page may be heard.',
    action: 'resume',
    label: 'Turn sound on',
  },
  'audio-failed': {
    title: 'The sound could not be started',
    text: 'Close other tabs that use sound and reload this page. Typing works all the same.',
    action: 'talk',
    label: 'Try again',
  },
  'sample-missing': {
    title: 'The sample question is missing',
    text: 'The server has no sample-question.wav. Press the microphone and ask something yourself.',
    action: 'dismiss',
    label: 'Close',
  },
  'server-gone': {
    title: 'The server does not answer',
    text: 'It may have been stopped, or your network is down.',
    action: 'reconnect',
    label: 'Try now',
  },
  'connection-broke': {
    title: 'The connection broke',
    text: 'Your call waits for you, and the agent remembers what was said.',
    action: 'reconnect',
    label: 'Try now',
  },
  'server-restarting': {
    title: 'The server is restarting',
    text: 'Your call continues when it is back; the agent will have forgotten what was said.',
    action: 'reconnect',
    label: 'Try now',
  },
  'server-full': {
    title: 'All lines are busy',
    text: 'The server takes only as many calls as it can answer in time.',
    action: 'reconnect',
    label: 'Try now',
  },
  'not-admitted': {
    title: 'The server did not take the call',
    text: 'It is up, but all its lines may be busy, or it does not serve this address.',
    action: 'reconnect',
    label: 'Try now',
  },
  'session-ended': {
    title: 'The call has ended',
    text: 'The server closed it.',
    action: 'talk',
    label: 'Call again',
  },
  'slow-connection': {
    title: 'Your connection is too slow',
    text: 'Some of what you said did not reach the server.',
    action: 'dismiss',
    label: 'Close',
    mild: true,
  },
  'reply-failed': {
    title: 'The agent could not answer',
    text: 'Something failed on the server. The call is still open: ask again.',
    action: 'dismiss',
    label: 'Close',
    mild: true,
  },
  'server-error': {
    title: 'The server objected',
    text: 'The call is still open.',
    action: 'dismiss',
    label: 'Close',
    mild: true,
  },
};

/**
 * The problem behind a lost connection.
 * @param {number} [code] WebSocket close code (RFC 6455, section 7.4.1, and the IANA registry)
 * @returns {string} a key of PROBLEMS
 */
export function problemOfClose(code) {
  if (code === 1012) return 'server-restarting';
  if (code === 1013) return 'server-full';
  if (code === 1000 || code === 1008) return 'session-ended';
  return 'server-gone';
}

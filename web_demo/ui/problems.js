/** Catalogue of problems: title, explanation and remedy of each, in the user's words. */

/**
 * @typedef {'talk' | 'resume' | 'reconnect' | 'settings' | 'dismiss'} Action
 *
 * @typedef {object} Problem
 * @property {string} title
 * @property {string} text what to do about it
 * @property {Action} action what its button does
 * @property {string} label of the button
 * @property {boolean} [mild] shown as a note rather than an alarm
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
  'permission-dismissed': {
    title: 'The microphone was not allowed yet',
    text:
      'Your browser asked whether this page may listen, and got no answer. Try again, and choose ' +
      '"Allow". You can also type below.',
    action: 'talk',
    label: 'Ask me again',
  },
  'permission-system': {
    title: 'Your system blocks the microphone',
    text:
      'The browser itself may not listen. Allow it in the privacy settings of your system, under ' +
      'Microphone, and try again. You can also type below.',
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
    text:
      'Another program holds it. Close that program and try again, or choose another microphone in ' +
      'the settings.',
    action: 'talk',
    label: 'Try again',
  },
  'microphone-hushed': {
    title: 'Your system has muted the microphone',
    text: 'A switch on the device, another program or a telephone call has. The agent hears silence.',
    action: 'dismiss',
    label: 'Close',
    mild: true,
  },
  'other-tab': {
    title: 'Another tab listens now',
    text: 'This page is open twice, and only one of them has the microphone. The call is still open.',
    action: 'talk',
    label: 'Talk here',
    mild: true,
  },
  'another-microphone': {
    title: 'Another microphone is used',
    text: 'The one you chose is not there. Plug it in, or choose another one.',
    action: 'settings',
    label: 'Choose',
    mild: true,
  },
  'another-speaker': {
    title: 'Another loudspeaker is used',
    text: 'The one you chose is not there. Plug it in, or choose another one.',
    action: 'settings',
    label: 'Choose',
    mild: true,
  },
  'other-rate': {
    title: 'This browser cannot use that microphone now',
    text:
      'It runs at another rate than the loudspeaker, and this browser cannot mix the two. Give both ' +
      'the same rate in the sound settings of your system, or choose another microphone.',
    action: 'settings',
    label: 'Choose',
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
      'Browsers allow a microphone only on https:// pages and on localhost. Typing works here all ' +
      'the same.',
    action: 'dismiss',
    label: 'I will type',
  },
  'sound-suspended': {
    title: 'Your browser blocks the sound',
    text: 'It allows sound only after a click on the page.',
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
  'lines-taken': {
    title: 'All your calls are in progress',
    text: 'End one of them, in another tab perhaps.',
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
  'webrtc-failed': {
    title: 'This call goes by WebSocket',
    text: 'WebRTC could not be connected.',
    action: 'dismiss',
    label: 'Close',
    mild: true,
  },
  'setting-refused': {
    title: 'The server did not take a setting',
    text: 'The call goes on without it.',
    action: 'settings',
    label: 'Change it',
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
    title: 'The server reported an error',
    text: 'The call is still open.',
    action: 'dismiss',
    label: 'Close',
    mild: true,
  },
};

/**
 * Problem code of a lost connection.
 * @param {number} [code] WebSocket close code (RFC 6455, section 7.4.1, and the IANA registry)
 * @returns {string} a key of PROBLEMS
 */
export function problemOfClose(code) {
  if (code === 1012) return 'server-restarting';
  if (code === 1013) return 'server-full';
  if (code === 1000 || code === 1008) return 'session-ended';
  return 'server-gone';
}

/** @type {Record<string, string>} */
const OF_REFUSAL = {
  busy: 'server-full',
  over_budget: 'server-full',
  rate_limit_exceeded: 'lines-taken',
  draining: 'server-restarting',
};

/**
 * Problem code of a rejected call.
 * @param {string} code of the server's error
 * @returns {string} a key of PROBLEMS
 */
export function problemOfRefusal(code) {
  return OF_REFUSAL[code] ?? 'not-admitted';
}

/**
 * Addresses of this page at which browsers allow a microphone.
 * @param {{hostname: string, port: string, pathname: string}} location of the page
 * @returns {string}
 */
export function secureAddresses({ hostname, port, pathname }) {
  const rest = `${port ? `:${port}` : ''}${pathname}`;
  return (
    `On the machine that it runs on, open http://localhost${rest} instead. For other machines, start ` +
    `the server with "halfsec serve --tls-self-signed" and open https://${hostname}${rest}`
  );
}

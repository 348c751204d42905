/**
 * Views of a call, loaded when one begins, so that the first page view stays light.
 */

import { CallLog } from '../call/call-log.js';
import { DownloadMenu } from './download-menu.js';
import { LiveTurn } from './live-turn.js';
import { ToolCalls } from './tool-calls.js';

/**
 * @param {import('../call/call.js').Call} call
 * @param {import('./transcript.js').Transcript} transcript
 * @param {import('../call/access.js').Access} access
 * @param {HTMLDetailsElement} menu
 * @param {import('../call/event-buffer.js').EventBuffer} events of the call from its start: server
 *   events, captured and played audio, changes of the conversation
 */
export function showCall(call, transcript, access, menu, events) {
  new LiveTurn(call, transcript, events);
  const tools = new ToolCalls(transcript);
  events.addEventListener('tool', (event) => {
    tools.show(/** @type {CustomEvent} */ (event).detail);
  });
  events.addEventListener('handoff', (event) => {
    transcript.addDivider(`You talk to ${/** @type {CustomEvent} */ (event).detail.to} now`);
  });
  events.addEventListener('status', (event) => {
    const { state, resumable, resumed } = /** @type {CustomEvent} */ (event).detail;
    if (state === 'closed' || state === 'waiting') tools.leave(resumable === true);
    if (state === 'open' && !resumed) tools.leave(false); // another call
  });
  new DownloadMenu(menu, new CallLog(call, events), access);
  call.addEventListener('phase', () => (menu.hidden = false), { once: true });
  menu.hidden = call.phase === 'off';
  events.release();
}

/**
 * What tells of a call, fetched when one begins: a page that is only looked at stays light.
 */

import { CallStory } from './call-story.js';
import { DownloadMenu } from './download-menu.js';
import { LiveTurn } from './live-turn.js';
import { ToolLines } from './tool-lines.js';

/**
 * @param {import('./call.js').Call} call
 * @param {import('./transcript.js').Transcript} transcript
 * @param {import('./access.js').Access} access
 * @param {HTMLDetailsElement} menu
 * @param {import('./held-events.js').HeldEvents} happened of the call: the server's events, what
 *   devices heard and played, and the conversation's, from the first on, though nobody listened then
 */
export function tellOf(call, transcript, access, menu, happened) {
  new LiveTurn(call, transcript, happened);
  const tools = new ToolLines(transcript);
  happened.addEventListener('tool', (event) => {
    tools.show(/** @type {CustomEvent} */ (event).detail);
  });
  happened.addEventListener('status', (event) => {
    if (/** @type {CustomEvent} */ (event).detail.state !== 'open') tools.leave();
  });
  new DownloadMenu(menu, new CallStory(call, happened), access);
  call.addEventListener('phase', () => (menu.hidden = false), { once: true });
  menu.hidden = call.phase === 'off';
  happened.release();
}

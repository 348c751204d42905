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
 * @param {import('./call-story.js').Batch[]} early what was captured before anybody listened
 */
export function tellOf(call, transcript, access, menu, early) {
  new LiveTurn(call, transcript);
  const tools = new ToolLines(transcript);
  call.conversation.addEventListener('tool', (event) => {
    tools.show(/** @type {CustomEvent} */ (event).detail);
  });
  call.client.addEventListener('status', () => {
    if (call.client.status.state !== 'open') tools.leave();
  });
  new DownloadMenu(menu, new CallStory(call, early), access);
  call.addEventListener('phase', () => (menu.hidden = false), { once: true });
  menu.hidden = call.phase === 'off';
}

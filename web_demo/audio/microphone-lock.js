/**
 * Lock that lets only one tab of the page use the microphone: the tab that was pressed last.
 *
 * Each tab has its own call. If two captured at once, each agent would hear the other. Tabs
 * announce themselves over a BroadcastChannel; nothing else is shared.
 */

const CHANNEL = 'halfsec.microphone';

export class MicrophoneLock {
  /** @param {() => void} onTaken called when another tab takes the microphone */
  constructor(onTaken) {
    /** @private @type {BroadcastChannel | null} */
    this.channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel(CHANNEL);
    this.channel?.addEventListener('message', () => onTaken());
  }

  /** Take the microphone for this tab. */
  take() {
    this.channel?.postMessage('taken');
  }
}

/**
 * Several tabs, one microphone: the tab in which somebody pressed last has it.
 *
 * Each tab has a call of its own. If two listened at once, each agent would hear the other one. The
 * tabs tell each other over a BroadcastChannel; nothing of any call is shared.
 */

const CHANNEL = 'halfsec.microphone';

export class MicrophoneLock {
  /** @param {() => void} onTaken another tab listens now */
  constructor(onTaken) {
    /** @private @type {BroadcastChannel | null} */
    this.channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel(CHANNEL);
    this.channel?.addEventListener('message', () => onTaken());
  }

  /** This tab listens now. */
  take() {
    this.channel?.postMessage('taken');
  }
}

/**
 * Audio of calls by WebRTC: which track is sent, and where the agent's goes.
 *
 * With push-to-talk the microphone is sent only while the key is held, as over the WebSocket.
 */

import { PeerSocket } from './peer-socket.js';

export class PeerAudio {
  /**
   * @param {import('../call/call.js').Call} call
   * @param {import('../call/preferences.js').PreferenceStore} preferences
   * @param {import('../call/access.js').Access} access
   */
  constructor(call, preferences, access) {
    /** @private */
    this.call = call;
    /** @private */
    this.access = access;
    /** @private @type {PeerSocket | null} */
    this.socket = null;
    const update = () => this.socket?.replaceTrack(this.track);
    call.devices.addEventListener('track', update);
    call.uplink.addEventListener('taken', update);
    call.uplink.addEventListener('yielded', update);
    preferences.addEventListener('change', update); // after push-to-talk was switched
  }

  /**
   * @param {string} url of the voice socket
   * @param {string | null} secret
   * @returns {PeerSocket} of a new call
   */
  open(url, secret) {
    this.socket = new PeerSocket({
      url,
      secret,
      track: this.track,
      onStream: (stream) => this.call.devices.playRemote(stream),
      hangUp: (path) => void this.hangUp(path),
    });
    return this.socket;
  }

  /** @private */
  get track() {
    const { devices, pushToTalk } = this.call;
    return pushToTalk.enabled && !pushToTalk.held ? null : devices.track;
  }

  /**
   * @private
   * @param {string} path
   */
  async hangUp(path) {
    try {
      await this.access.fetch(`${path}/hangup`, { method: 'POST' });
    } catch {
      // The server ends a call that is not connected by itself, some seconds later.
    }
  }
}

/**
 * The agent's audio of a call by WebRTC: played by an audio element, which has the browser's own
 * jitter buffer, and measured by the worklet that captures microphones.
 *
 * A browser may refuse to play the element while the audio context runs: one that asks for a gesture
 * does not count the click with which the call began, some seconds before. Playing is then tried
 * again at every click and key.
 *
 * Events: `batch` (detail: {pcm, level, atS}) every 20 ms of received audio, silence included;
 * `blocked` when `isBlocked` changes.
 */

/** Events with which a browser lets a page play. */
const GESTURES = ['click', 'keydown'];

/** @typedef {{setSinkId?: (id: string) => Promise<void>}} Sink */

export class RemoteAudio extends EventTarget {
  /**
   * @param {AudioContext} context with the worklet `capture`
   * @param {MediaStream} stream
   */
  constructor(context, stream) {
    super();
    /** @private */
    this.element = new Audio();
    this.element.srcObject = stream;
    /** True while the browser refuses to play. */
    this.isBlocked = false;
    /** @private */
    this.onGesture = () => void this.resume();
    /** @private */
    this.source = context.createMediaStreamSource(stream);
    /** @private */
    this.node = new AudioWorkletNode(context, 'capture', { numberOfOutputs: 1 });
    this.source.connect(this.node);
    // The output is silent; connecting it makes every browser pull the node.
    this.node.connect(context.destination);
    this.node.port.onmessage = ({ data }) => {
      this.dispatchEvent(new CustomEvent('batch', { detail: data }));
    };
    void this.resume();
  }

  /** Play; a browser that allows no sound refuses until the user clicks. */
  async resume() {
    try {
      await this.element.play();
      this.setBlocked(false);
    } catch (error) {
      // Other errors: closed meanwhile.
      const isRefused = error instanceof DOMException && error.name === 'NotAllowedError';
      if (isRefused && this.element.srcObject) this.setBlocked(true);
    }
  }

  /**
   * @private
   * @param {boolean} isBlocked
   */
  setBlocked(isBlocked) {
    if (this.isBlocked === isBlocked) return;
    this.isBlocked = isBlocked;
    for (const gesture of GESTURES) {
      // Capturing: others may keep an event for themselves.
      if (isBlocked) document.addEventListener(gesture, this.onGesture, true);
      else document.removeEventListener(gesture, this.onGesture, true);
    }
    this.dispatchEvent(new Event('blocked'));
  }

  /**
   * @param {string} id of the loudspeaker
   * @throws {Error} where it is missing
   */
  async useSpeaker(id) {
    await /** @type {Sink} */ (this.element).setSinkId?.(id);
  }

  /** Stop. The object cannot be used afterwards. */
  close() {
    this.element.pause();
    this.element.srcObject = null;
    this.setBlocked(false);
    this.source.disconnect();
    this.node.port.postMessage('close');
    this.node.disconnect();
  }
}

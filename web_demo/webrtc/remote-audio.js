/**
 * The agent's audio of a call by WebRTC: played by an audio element, which has the browser's own
 * jitter buffer, and measured by the worklet that captures microphones.
 *
 * Events: `batch` (detail: {pcm, level, atS}) every 20 ms of received audio, silence included.
 */

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
    } catch {
      // The page says so, since the audio context is suspended too.
    }
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
    this.source.disconnect();
    this.node.port.postMessage('close');
    this.node.disconnect();
  }
}

/**
 * Where the caller's audio comes from: the microphone, or a recorded question in its place.
 *
 * Both go through the same worklet (`capture-worklet.js`), so a page without a microphone exercises
 * the same path. Batches of 20 ms arrive as `batch` events; `lost` says that the device went away,
 * `sample-ended` that the recording has been played.
 */

/** Errors of `getUserMedia` and the problem (see `problems.js`) each stands for. */
const PROBLEMS = /** @type {Record<string, string>} */ ({
  NotAllowedError: 'permission-denied',
  SecurityError: 'permission-denied',
  NotFoundError: 'no-microphone',
  OverconstrainedError: 'no-microphone',
  NotReadableError: 'microphone-busy',
  AbortError: 'microphone-busy',
});

/** The recording is also heard, a little softer than the agent who answers it. */
const SAMPLE_GAIN = 0.7;

export class CaptureError extends Error {
  /** @param {string} code a key of `problems.js` */
  constructor(code) {
    super(code);
    this.code = code;
  }
}

export class Capture extends EventTarget {
  /**
   * Load the worklet into a running context.
   * @param {AudioContext} context
   * @returns {Promise<Capture>}
   */
  static async create(context) {
    await context.audioWorklet.addModule('capture-worklet.js');
    return new Capture(context);
  }

  /**
   * Use `Capture.create`: the worklet has to be loaded first.
   * @param {AudioContext} context
   */
  constructor(context) {
    super();
    /** @private */
    this.context = context;
    /** @private @type {MediaStream | null} */
    this.stream = null;
    /** @private @type {MediaStreamAudioSourceNode | null} */
    this.microphone = null;
    /** @private @type {AudioBufferSourceNode | null} */
    this.sample = null;
    /** Batches are passed on only while this is true. */
    this.running = false;
    /** @private */
    this.node = new AudioWorkletNode(context, 'capture', { numberOfOutputs: 1 });
    // The output is silent; connecting it makes every browser pull the node.
    this.node.connect(context.destination);
    this.node.port.onmessage = ({ data }) => {
      if (this.running) this.dispatchEvent(new CustomEvent('batch', { detail: data }));
    };
  }

  get hasMicrophone() {
    return this.microphone !== null;
  }

  /**
   * Ask for the microphone and listen to it.
   * @returns {Promise<void>}
   * @throws {CaptureError}
   */
  async openMicrophone() {
    this.stream = await requestMicrophone();
    this.microphone = this.context.createMediaStreamSource(this.stream);
    this.microphone.connect(this.node);
    for (const track of this.stream.getAudioTracks()) {
      track.addEventListener('ended', () => {
        this.closeMicrophone();
        this.dispatchEvent(new Event('lost'));
      });
    }
    this.running = true;
  }

  /**
   * Play a recording to the agent in place of the microphone, from its beginning.
   * @param {string} url
   * @returns {Promise<void>} when it has started
   */
  async playSample(url) {
    const response = await fetch(url);
    if (!response.ok) throw new CaptureError('sample-missing');
    const recording = await this.context.decodeAudioData(await response.arrayBuffer());
    this.stopSample();
    const sample = this.context.createBufferSource();
    sample.buffer = recording;
    const gain = this.context.createGain();
    gain.gain.value = SAMPLE_GAIN;
    sample.connect(this.node);
    sample.connect(gain).connect(this.context.destination);
    this.microphone?.disconnect();
    sample.onended = () => {
      gain.disconnect();
      if (this.sample !== sample) return;
      this.stopSample();
      this.dispatchEvent(new Event('sample-ended'));
    };
    this.sample = sample;
    this.running = true;
    sample.start();
  }

  /** @private */
  stopSample() {
    const sample = this.sample;
    this.sample = null;
    sample?.stop();
    sample?.disconnect();
    this.microphone?.connect(this.node);
  }

  /** @private */
  closeMicrophone() {
    this.microphone?.disconnect();
    this.microphone = null;
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = null;
  }

  /** Let go of the device. The object is of no use afterwards. */
  close() {
    this.running = false;
    this.stopSample();
    this.closeMicrophone();
    this.node.port.postMessage('close');
    this.node.disconnect();
  }
}

/**
 * @returns {Promise<MediaStream>}
 * @throws {CaptureError}
 */
async function requestMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia) throw new CaptureError('insecure-context');
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true },
    });
  } catch (error) {
    const name = error instanceof Error ? error.name : '';
    throw new CaptureError(PROBLEMS[name] ?? 'microphone-busy');
  }
}

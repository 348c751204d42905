// Injected before a page's own scripts: whatever is connected to the loudspeaker is also connected
// to a recorder, and so is what goes into the page's capture worklet. The page knows nothing of it.
// Both are recorded by one node, so that a sample of one has the time of a sample of the other.

(() => {
  // Addresses that browsers do not trust have no worklets, and nothing to record.
  if (!globalThis.AudioWorklet) return;
  const PLAYED = 0;
  const CAPTURED = 1;
  const recorders = new Map();
  const captures = new WeakSet();
  globalThis.recordedChunks = [];
  globalThis.capturedChunks = [];
  globalThis.wireFrames = [];

  const addModule = AudioWorklet.prototype.addModule;
  AudioWorklet.prototype.addModule = async function (url) {
    await addModule.call(this, globalThis.recorderUrl ?? '/recorder-worklet.js');
    return addModule.call(this, url);
  };

  globalThis.AudioWorkletNode = class extends AudioWorkletNode {
    constructor(context, name, options) {
      super(context, name, options);
      if (name === 'capture') captures.add(this);
    }
  };

  // The sample being recorded when the server says that the caller speaks, or may be speaking.
  globalThis.WebSocket = class extends WebSocket {
    constructor(...args) {
      super(...args);
      this.addEventListener('message', ({ data }) => {
        const type = /"type": ?"(input_audio_buffer\.speech_started|halfsec\.duck)"/.exec(data)?.[1];
        if (!type || !globalThis.recordedContext) return;
        const { currentTime, sampleRate } = globalThis.recordedContext;
        const frame = Math.round(currentTime * sampleRate) - globalThis.firstFrame;
        globalThis.wireFrames.push({ type, frame });
      });
    }
  };

  const connect = AudioNode.prototype.connect;

  function recorderOf(context) {
    const known = recorders.get(context);
    if (known) return known;
    const recorder = new AudioWorkletNode(context, 'recorder', {
      numberOfInputs: 2,
      channelCount: 1,
      channelCountMode: 'explicit',
    });
    recorder.port.onmessage = ({ data }) => {
      globalThis.firstFrame ??= data.frame;
      globalThis.recordedChunks.push(data.played);
      globalThis.capturedChunks.push(data.captured);
    };
    connect.call(recorder, context.destination);
    recorders.set(context, recorder);
    globalThis.recordedRate = context.sampleRate;
    globalThis.recordedContext = context;
    return recorder;
  }

  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode) {
      connect.call(this, recorderOf(this.context), 0, PLAYED);
    } else if (captures.has(target)) {
      connect.call(this, recorderOf(this.context), 0, CAPTURED);
    }
    return connect.call(this, target, ...rest);
  };
})();

// Test only, injected before the page's own scripts: whatever is connected to the loudspeaker is
// also connected to a recorder. The page knows nothing of it.

(() => {
  // Addresses that browsers do not trust have no worklets, and nothing to record.
  if (!globalThis.AudioWorklet) return;
  const recorders = new Map();
  globalThis.recordedChunks = [];

  const addModule = AudioWorklet.prototype.addModule;
  AudioWorklet.prototype.addModule = async function (url) {
    await addModule.call(this, globalThis.recorderUrl ?? '/recorder-worklet.js');
    return addModule.call(this, url);
  };

  // The sample being recorded when the server says that the caller speaks.
  globalThis.WebSocket = class extends WebSocket {
    constructor(...args) {
      super(...args);
      this.addEventListener('message', ({ data }) => {
        if (!data.includes('input_audio_buffer.speech_started')) return;
        const { currentTime, sampleRate } = globalThis.recordedContext;
        globalThis.interruptedAt ??= Math.round(currentTime * sampleRate) - globalThis.firstFrame;
      });
    }
  };

  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode) {
      let recorder = recorders.get(this.context);
      if (!recorder) {
        recorder = new AudioWorkletNode(this.context, 'recorder', { channelCount: 1 });
        recorder.port.onmessage = ({ data }) => {
          globalThis.firstFrame ??= data.frame;
          globalThis.recordedChunks.push(data.samples);
        };
        connect.call(recorder, this.context.destination);
        recorders.set(this.context, recorder);
        globalThis.recordedRate = this.context.sampleRate;
        globalThis.recordedContext = this.context;
      }
      connect.call(this, recorder);
    }
    return connect.call(this, target, ...rest);
  };
})();

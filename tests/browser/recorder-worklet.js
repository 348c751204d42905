// Test only: hears what the page gives to the loudspeaker, sample by sample.

class Recorder extends AudioWorkletProcessor {
  process(inputs) {
    const channel = inputs[0][0] ?? new Float32Array(128);
    this.port.postMessage({ samples: channel.slice(), frame: currentFrame });
    return true;
  }
}

registerProcessor('recorder', Recorder);

// Hears what the page gives to the loudspeaker and what it takes from the microphone, sample by
// sample, on one time axis. Used by `browser_recorder.js`.

const CHUNK = 1024;

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.begin();
  }

  begin() {
    this.frame = currentFrame;
    this.played = new Float32Array(CHUNK);
    this.captured = new Float32Array(CHUNK);
    this.length = 0;
  }

  process(inputs) {
    if (this.length === 0) this.frame = currentFrame;
    const [played, captured] = inputs;
    if (played[0]) this.played.set(played[0], this.length);
    if (captured[0]) this.captured.set(captured[0], this.length);
    this.length += 128;
    if (this.length === CHUNK) {
      this.port.postMessage({ frame: this.frame, played: this.played, captured: this.captured });
      this.begin();
    }
    return true;
  }
}

registerProcessor('recorder', Recorder);

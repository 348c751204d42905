// Injected before a page's own scripts: a microphone that says what it is told to. `speak` takes
// the bytes of a recording in base64 and ends when it has been said.

(() => {
  if (!navigator.mediaDevices) return;
  let context;
  let room;

  function microphone() {
    context ??= new AudioContext();
    room ??= context.createMediaStreamDestination();
    return context.resume();
  }

  navigator.mediaDevices.getUserMedia = async () => {
    await microphone();
    return room.stream.clone();
  };

  globalThis.speak = async (base64) => {
    await microphone();
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const voice = context.createBufferSource();
    voice.buffer = await context.decodeAudioData(bytes.buffer);
    voice.connect(room);
    const ended = new Promise((resolve) => {
      voice.onended = resolve;
    });
    voice.start();
    await ended;
  };
})();

/**
 * Audio in JSON frames: base64 of 16 bit little-endian samples. (`btoa` does not exist in audio
 * worklets.)
 */

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function toBase64(bytes) {
  let text = '';
  // Arguments of one call are limited (65,536 in some engines); 20 ms are 960 bytes.
  for (let i = 0; i < bytes.length; i += 8192) {
    text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(text);
}

/**
 * @param {string} text base64 of an even number of bytes
 * @returns {Float32Array} samples in [-1, 1)
 */
export function samplesFromBase64(text) {
  const raw = atob(text);
  const samples = new Float32Array(raw.length >> 1);
  for (let i = 0; i < samples.length; i += 1) {
    const word = raw.charCodeAt(2 * i) | (raw.charCodeAt(2 * i + 1) << 8);
    samples[i] = ((word << 16) >> 16) / 32768;
  }
  return samples;
}

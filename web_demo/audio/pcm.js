/** Samples on the wire: 24 kHz, mono, 16 bit. Used on the page and in audio worklets. */

export const WIRE_RATE_HZ = 24_000;

/**
 * @param {Float32Array} samples clipped to [-1, 1]
 * @returns {Int16Array} in the machine's byte order, which is little-endian wherever browsers run
 */
export function toInt16(samples) {
  return Int16Array.from(samples, (sample) =>
    Math.max(-32768, Math.min(32767, Math.round(sample * 32768))),
  );
}

/**
 * @param {Float32Array} samples
 * @returns {number} root mean square
 */
export function rms(samples) {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  return samples.length === 0 ? 0 : Math.sqrt(sum / samples.length);
}

/**
 * List of available microphones and loudspeakers, updated when devices are added or removed.
 *
 * Browsers name devices only after a microphone was allowed; before that the list is empty. Events:
 * `change`.
 */

/**
 * @typedef {object} Device
 * @property {string} id
 * @property {string} label
 */

/**
 * Chrome's own entries for the system's default; the first entry of the page's list means the same.
 */
const ALIASES = new Set(['default', 'communications', '']);

export class DeviceList extends EventTarget {
  constructor() {
    super();
    /** @type {Device[]} */
    this.microphones = [];
    /** @type {Device[]} */
    this.speakers = [];
    navigator.mediaDevices?.addEventListener('devicechange', () => void this.refresh());
  }

  /** True when the browser lets a page choose the output device. */
  get canChooseSpeaker() {
    return 'AudioContext' in globalThis && 'setSinkId' in AudioContext.prototype;
  }

  async refresh() {
    const found = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
    this.microphones = named(found, 'audioinput');
    this.speakers = named(found, 'audiooutput');
    this.dispatchEvent(new Event('change'));
  }
}

/**
 * @param {MediaDeviceInfo[]} devices
 * @param {MediaDeviceKind} kind
 * @returns {Device[]}
 */
function named(devices, kind) {
  return devices
    .filter((device) => device.kind === kind && !ALIASES.has(device.deviceId) && device.label)
    .map(({ deviceId, label }) => ({ id: deviceId, label }));
}

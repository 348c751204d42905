/**
 * The microphones and loudspeakers that can be chosen, kept up to date while they come and go.
 *
 * Browsers name them only once a microphone was allowed; before that there is nothing to choose.
 * Events: `change`.
 */

/**
 * @typedef {object} Device
 * @property {string} id
 * @property {string} label
 */

/** Chrome's own entries for what the system would choose; our first entry says that already. */
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

  /** Whether this browser lets a page choose where its sound goes. */
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

/** Figures as text. What is not known is a dash, never a nought. */

export const NONE = '–';

/** @param {number | null | undefined} value */
export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  if (Math.abs(value) >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  return `${Math.abs(value) < 9.95 && value !== 0 ? value.toFixed(1) : Math.round(value)} ms`;
}

/**
 * Cut off, not rounded: what misses a target by a hair does not look as if it met it.
 * @param {number | null | undefined} share 0..1
 */
export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return NONE;
  return `${Number((Math.floor(share * 1000 + 1e-6) / 10).toFixed(1))} %`;
}

const COUNT = new Intl.NumberFormat('en');

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? NONE : COUNT.format(value);
}

/**
 * @param {number} number
 * @param {string} one
 * @param {string} [many]
 */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

const CLOCK = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' });
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' });

/** @param {number | null} unixMs */
export function clockTime(unixMs) {
  return unixMs === null ? NONE : CLOCK.format(unixMs);
}

/** @param {number | null} unixMs */
export function dayAndTime(unixMs) {
  return unixMs === null ? NONE : `${DAY.format(unixMs)}, ${CLOCK.format(unixMs)}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Libraries that are no modules. */

/**
 * @param {string} path
 * @returns {Promise<void>} rejects where it can't be had
 */
export function loadScript(path) {
  return new Promise((resolve, reject) => {
    const script = document.createElement('script');
    script.src = path;
    script.addEventListener('load', () => resolve());
    script.addEventListener('error', () => reject(new Error(`${path} can't be loaded`)));
    document.head.append(script);
  });
}

/** Loading of libraries that are not ES modules. */

/**
 * @param {string} path
 * @returns {Promise<void>} rejects when it cannot be loaded
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

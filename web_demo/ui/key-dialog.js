/** Dialog that asks for the server's key. */

export class KeyDialog {
  /** @param {HTMLDialogElement} dialog with a form, an input, `.key-problem` and `.key-cancel` */
  constructor(dialog) {
    /** @private */
    this.dialog = dialog;
    /** @private */
    this.input = /** @type {HTMLInputElement} */ (dialog.querySelector('input'));
    /** @private */
    this.problem = /** @type {HTMLElement} */ (dialog.querySelector('.key-problem'));
    dialog.querySelector('.key-cancel')?.addEventListener('click', () => dialog.close(''));
    dialog.querySelector('form')?.addEventListener('submit', (event) => {
      event.preventDefault();
      const key = this.input.value.trim();
      if (key) dialog.close(key);
    });
  }

  /**
   * @param {string} problem with the key that was given before; empty for none
   * @returns {Promise<string>} rejects when the user gives none
   */
  ask(problem) {
    this.input.value = '';
    this.problem.textContent = problem;
    this.input.setAttribute('aria-invalid', String(problem !== ''));
    this.dialog.returnValue = ''; // Escape does not change `returnValue`
    this.dialog.showModal();
    return new Promise((resolve, reject) => {
      const closed = () => {
        const key = this.dialog.returnValue;
        this.dialog.returnValue = '';
        this.input.value = '';
        if (key) resolve(key);
        else reject(new Error('no key was given'));
      };
      this.dialog.addEventListener('close', closed, { once: true });
    });
  }
}

/**
 * The line for writing to the agent: Enter sends, Shift+Enter begins another line, long texts make it
 * grow, and a text that is too long is said to be, rather than cut in silence.
 */

export class TextInput {
  /**
   * @param {HTMLFormElement} form with a textarea and a place for what is to be said about it
   * @param {(text: string) => void} send
   */
  constructor(form, send) {
    /** @private */
    this.send = send;
    /** @private */
    this.field = /** @type {HTMLTextAreaElement} */ (form.querySelector('textarea'));
    /** @private */
    this.note = /** @type {HTMLElement} */ (form.querySelector('[role=status]'));
    /** @private Before the server refuses it. */
    this.maxChars = Number(this.field.dataset.max);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.submit();
    });
    this.field.addEventListener('keydown', (event) => {
      // While a word is being composed, as in Japanese, Enter chooses it.
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    this.field.addEventListener('input', () => this.look());
  }

  /** @private */
  submit() {
    const text = this.field.value.trim();
    if (!text || !this.look()) return;
    this.field.value = '';
    this.send(text);
  }

  /**
   * @private
   * @returns {boolean} whether it can be sent
   */
  look() {
    const tooMany = this.field.value.trim().length - this.maxChars;
    const text = tooMany > 0 ? `${tooMany} characters too long for one message.` : '';
    if (this.note.textContent !== text) this.note.textContent = text;
    this.field.setAttribute('aria-invalid', String(tooMany > 0));
    return tooMany <= 0;
  }
}

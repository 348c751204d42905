/**
 * Text input: Enter sends, Shift+Enter adds a line, it grows with the text, and a text that is too
 * long is reported, not cut.
 */

export class TextInput {
  /**
   * @param {HTMLFormElement} form with a textarea and a status line
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
      // During composition by an input method, as for Japanese, Enter selects the word.
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
   * @returns {boolean} true when it can be sent
   */
  look() {
    const tooMany = this.field.value.trim().length - this.maxChars;
    const text = tooMany > 0 ? `${tooMany} characters too long for one message.` : '';
    if (this.note.textContent !== text) this.note.textContent = text;
    this.field.setAttribute('aria-invalid', String(tooMany > 0));
    return tooMany <= 0;
  }
}

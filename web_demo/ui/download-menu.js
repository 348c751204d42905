/** Download menu of a call: recording, transcript, and the server's trace. */

import { transcriptText } from '../call/transcript-text.js';

/**
 * @typedef {import('../call/access.js').Access} Access
 * @typedef {import('../call/call-log.js').CallLog} CallLog
 */

/** Time for the browser to read a file before the page releases it. */
const KEEP_MS = 60_000;

export class DownloadMenu {
  /**
   * @param {HTMLDetailsElement} box with a button per file, and a status line
   * @param {CallLog} log
   * @param {Access} access
   */
  constructor(box, log, access) {
    /** @private */
    this.box = box;
    /** @private */
    this.log = log;
    /** @private */
    this.access = access;
    /** @private */
    this.status = /** @type {HTMLElement} */ (box.querySelector('[role=status]'));
    const makers = { sound: this.sound, transcript: this.transcript, trace: this.trace };
    for (const [name, make] of Object.entries(makers)) {
      const button = box.querySelector(`[data-file=${name}]`);
      button?.addEventListener('click', () => void this.give(make));
    }
    box.addEventListener('toggle', () => this.say(''));
    box.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape' || !box.open) return;
      event.stopPropagation(); // Escape closes the menu, and does not stop the agent
      box.open = false;
      box.querySelector('summary')?.focus();
    });
    document.addEventListener('click', ({ target }) => {
      if (!box.contains(/** @type {Node} */ (target))) box.open = false;
    });
  }

  /**
   * @private
   * @param {() => Promise<string>} make saves a file and returns a status text
   */
  async give(make) {
    try {
      this.say(await make.call(this));
    } catch (error) {
      this.say(error instanceof Error ? error.message : String(error));
    }
  }

  /** @private */
  async sound() {
    const { recording } = this.log.entries;
    if (recording.isEmpty) return 'Nothing has been recorded yet.';
    this.save(recording.file(), 'wav');
    return recording.hasForgotten ? 'The beginning is missing: the call was too long to keep.' : '';
  }

  /** @private */
  async transcript() {
    const { entries } = this.log;
    if (entries.lines.length === 0) return 'Nothing has been said yet.';
    const text = transcriptText(entries, entries.recording.startMs);
    this.save(new Blob([text], { type: 'text/markdown' }), 'md');
    return '';
  }

  /** @private Of each session of the call, as far as the server still has it. */
  async trace() {
    const { sessions } = this.log.entries;
    if (sessions.length === 0) return 'This call has not reached the server.';
    this.say('Asking the server …');
    const texts = [];
    for (const id of sessions) {
      const answer = await this.ask(`v1/sessions/${encodeURIComponent(id)}/trace`);
      if (answer.ok) texts.push(await answer.text());
      else if (answer.status !== 404) return `The server does not give the trace: ${answer.status}.`;
    }
    if (texts.length > 0) this.save(new Blob(texts, { type: 'application/jsonl' }), 'jsonl');
    if (texts.length === sessions.length) return '';
    const what = texts.length > 0 ? 'A part of the trace' : 'The trace';
    return `${what} is gone: the server forgets old calls, and all of them when it is restarted.`;
  }

  /**
   * @private
   * @param {string} path
   */
  async ask(path) {
    try {
      return await this.access.get(path);
    } catch {
      throw new Error('The server does not answer. Sound and transcript are to be had without it.');
    }
  }

  /**
   * @private
   * @param {Blob} blob
   * @param {string} extension
   */
  save(blob, extension) {
    const stamp = this.log.entries.beganAt.toISOString().slice(0, 16).replace('T', '-').replace(':', '');
    const link = document.createElement('a');
    link.href = URL.createObjectURL(blob);
    link.download = `halfsec-${stamp}.${extension}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), KEEP_MS);
  }

  /**
   * @private
   * @param {string} text
   */
  say(text) {
    this.status.textContent = text;
  }
}

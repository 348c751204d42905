/** Lines in the transcript for tools that the server runs: `halfsec.tool`. */

/**
 * @typedef {import('./transcript.js').Transcript} Transcript
 *
 * @typedef {object} ToolEvent
 * @property {string} item_id of the reply that called it
 * @property {string} name
 * @property {'started' | 'background' | 'done' | 'failed' | 'cancelled'} state
 *   background: it has started, and goes on while the agent talks on
 * @property {number} ms since it started
 */

/** Maximum number of lines that can still be updated. */
const MAX_RUNNING = 64;

export class ToolCalls {
  /** @param {Transcript} transcript */
  constructor(transcript) {
    /** @private */
    this.transcript = transcript;
    /** @private Several of one reply may have one name. @type {{tool: ToolEvent, line: HTMLElement}[]} */
    this.running = [];
  }

  /** @param {ToolEvent} tool */
  show(tool) {
    if (tool.state === 'started') this.begin(tool);
    else if (tool.state === 'background') this.goOn(tool);
    else this.end(tool);
  }

  /**
   * The connection was lost: the outcome of running tools stays unknown. Those in the background
   * go on with the call.
   * @param {boolean} resumable the server may have kept the call
   */
  leave(resumable) {
    const left = this.running;
    this.running = left.filter(({ tool }) => resumable && tool.state === 'background');
    for (const each of left) {
      if (!this.running.includes(each)) write(each.line, { ...each.tool, state: 'cancelled' });
    }
  }

  /**
   * @private
   * @param {ToolEvent} tool
   */
  begin(tool) {
    const line = this.transcript.addLine('tool', '');
    write(line, tool);
    this.running.push({ tool, line });
    this.running.splice(0, this.running.length - MAX_RUNNING);
    this.transcript.announce(toolText(tool));
  }

  /**
   * @private
   * @param {ToolEvent} tool
   */
  goOn(tool) {
    const known = this.running.find(
      ({ tool: each }) => isSame(each, tool) && each.state === 'started',
    );
    if (!known) return;
    known.tool = tool;
    write(known.line, tool);
  }

  /**
   * @private
   * @param {ToolEvent} tool
   */
  end(tool) {
    const index = this.running.findIndex((each) => isSame(each.tool, tool));
    const [known] = index < 0 ? [] : this.running.splice(index, 1);
    write(known?.line ?? this.transcript.addLine('tool', ''), tool);
    if (tool.state === 'failed') this.transcript.announce(toolText(tool));
  }
}

/**
 * @param {ToolEvent} one
 * @param {ToolEvent} other
 */
function isSame(one, other) {
  return one.item_id === other.item_id && one.name === other.name;
}

/**
 * @param {ToolEvent} tool
 * @returns {string} text of the line
 */
export function toolText({ name, state, ms }) {
  if (state === 'started') return `Looking that up: ${name} …`;
  if (state === 'background') return `Looking that up in the background: ${name} …`;
  const time = ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`;
  return `Looking that up: ${name} … ${state === 'cancelled' ? state : `${state}, ${time}`}`;
}

/**
 * @param {HTMLElement} line
 * @param {ToolEvent} tool
 */
function write(line, tool) {
  line.dataset.state = tool.state;
  line.textContent = toolText(tool);
}

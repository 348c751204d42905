/** Calls in progress, each with its current activity. */

import { element } from '../../ui/dom.js';
import { STAGE_NAMES } from '../../ui/stages.js';
import { CallTimeline } from '../charts/call-timeline.js';
import { clockTime, milliseconds, plural } from '../data/format.js';
import { find, write } from '../renderer.js';

/**
 * @typedef {object} CallState
 * @property {string} session
 * @property {string} [agent]
 * @property {string} [began_at]
 * @property {number} [turns]
 * @property {number} [background_tools] that run now
 * @property {number} [handoffs]
 * @property {number | null} [p50_ms]
 * @property {string | null} [state]
 * @property {string | null} [stage]
 * @property {boolean} [waiting]
 */

/** @type {Record<string, string>} */
const STATES = {
  listening: 'Listening',
  hearing: 'Hearing the caller',
  thinking: 'Thinking',
  speaking: 'Speaking',
  waiting: 'Waiting for the caller to come back',
};

export class LiveCalls {
  /**
   * @param {HTMLElement} section
   * @param {import('../renderer.js').Renderer} renderer
   * @param {{onCount: (count: number) => void, onChoose: (session: string) => void}} listeners
   */
  constructor(section, renderer, { onCount, onChoose }) {
    /** @private */
    this.list = find(section, '.calls');
    /** @private */
    this.empty = find(section, '.empty');
    /** @private */
    this.renderer = renderer;
    /** @private */
    this.onCount = onCount;
    /** @private @type {Map<string, CallCard>} in the order in which they began */
    this.cards = new Map();
    this.list.addEventListener('click', (event) => {
      const button = /** @type {Element} */ (event.target).closest('button');
      if (button?.dataset.session) onChoose(button.dataset.session);
    });
  }

  /** @param {CallState[]} calls all calls in progress */
  set(calls) {
    const there = new Set(calls.map(({ session }) => session));
    for (const session of this.cards.keys()) {
      if (!there.has(session)) this.remove(session);
    }
    for (const call of calls) this.card(call.session).update(call);
    this.changed();
  }

  /** @param {{session: string, state?: string, stage?: string | null,
   *   agent?: string, background_tools?: number, handoffs?: number}} event */
  onSession(event) {
    if (event.state === 'ended') this.remove(event.session);
    else if (event.state === 'began') {
      this.card(event.session).update({ ...event, state: 'listening', stage: null, turns: 0 });
    } else {
      this.card(event.session).update({ ...event, waiting: event.state === 'waiting' });
    }
    this.changed();
  }

  /** @param {{session: string, turn: number, name: string, at_ms: number}} mark */
  onMark(mark) {
    this.cards.get(mark.session)?.timeline.mark(mark, performance.now());
  }

  /** @param {import('../data/turn-row.js').Turn} turn that is over */
  onTurn(turn) {
    this.cards.get(turn.session)?.timeline.end(turn);
  }

  /**
   * @private
   * @param {string} session
   * @returns {CallCard}
   */
  card(session) {
    let card = this.cards.get(session);
    if (card === undefined) {
      card = new CallCard(session, this.renderer);
      this.cards.set(session, card);
      this.list.append(card.element);
    }
    return card;
  }

  /**
   * @private
   * @param {string} session
   */
  remove(session) {
    this.cards.get(session)?.remove();
    this.cards.delete(session);
  }

  /** @private */
  changed() {
    this.empty.hidden = this.cards.size > 0;
    this.onCount(this.cards.size);
  }
}

class CallCard {
  /**
   * @param {string} session
   * @param {import('../renderer.js').Renderer} renderer
   */
  constructor(session, renderer) {
    /** @private @type {CallState} */
    this.call = { session };
    /** @private */
    this.renderer = renderer;
    this.element = element('li', 'call');
    /** @private */
    this.state = element('span', 'call-state');
    /** @private */
    this.agent = element('bdi', 'call-agent');
    /** @private */
    this.facts = element('span', 'call-facts');
    this.timeline = new CallTimeline(renderer);
    const name = element('button', 'call-session');
    name.setAttribute('type', 'button');
    name.dataset.session = session;
    name.title = 'Show the turns of this call';
    name.append(element('bdi', '', session));
    const head = element('div', 'call-head');
    head.append(this.agent, this.state);
    const foot = element('div', 'call-foot');
    foot.append(name, this.facts);
    this.element.append(head, this.timeline.element, foot);
    /** @private */
    this.draw = () => this.drawNow();
  }

  /** @param {Partial<CallState>} call changed fields */
  update(call) {
    this.call = { ...this.call, ...call };
    this.renderer.want(this.draw);
  }

  remove() {
    this.element.remove();
    this.timeline.stop();
  }

  /** @private */
  drawNow() {
    const { agent, began_at, turns, p50_ms, state, stage, waiting } = this.call;
    const { background_tools, handoffs } = this.call;
    const now = waiting ? 'waiting' : (state ?? 'listening');
    this.element.dataset.state = now;
    const doing = stage ? ` · ${STAGE_NAMES[stage] ?? stage}` : '';
    write(this.state, `${STATES[now] ?? now}${doing}`);
    write(this.agent, agent ?? 'call');
    const began = Date.parse(began_at ?? '');
    const facts = [
      turns === undefined ? '' : plural(turns, 'turn'),
      background_tools ? `${plural(background_tools, 'tool')} in the background` : '',
      handoffs ? plural(handoffs, 'handoff') : '',
      p50_ms === undefined || p50_ms === null ? '' : `p50 ${milliseconds(p50_ms)}`,
      Number.isNaN(began) ? '' : `since ${clockTime(began)}`,
    ];
    write(this.facts, facts.filter(Boolean).join(' · '));
  }
}

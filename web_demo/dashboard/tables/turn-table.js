/**
 * Table of turns, virtualized: only visible rows are in the document, a fixed number of elements
 * that move on scrolling, in reading order.
 */

import { element } from '../../ui/dom.js';
import { STAGE_NAMES } from '../../ui/stages.js';
import { clockTime, dayAndTime, milliseconds } from '../data/format.js';
import { find, write } from '../renderer.js';
import { STAGES } from '../data/turn-row.js';

/** @typedef {import('../data/turn-row.js').Row} Row */

/** Right end of the bars, so that rows are comparable; longer bars are cut. */
export const AXIS_MS = 1000;

/** Rows rendered beyond the edges, so that quick scrolling shows no blank rows. */
const SPARE = 6;

/** Minimum exposed time of a drawn stage. */
const DRAWN_MS = 0.5;

export class TurnTable {
  /**
   * @param {HTMLElement} grid that scrolls
   * @param {import('../data/turn-list.js').TurnList} list
   * @param {import('../renderer.js').Renderer} renderer
   * @param {(row: Row) => void} onOpen
   */
  constructor(grid, list, renderer, onOpen) {
    /** @private */
    this.grid = grid;
    /** @private */
    this.list = list;
    /** @private */
    this.renderer = renderer;
    /** @private */
    this.onOpen = onOpen;
    /** @private */
    this.body = find(grid, '.turns-body');
    /** @private */
    this.head = find(grid, '.turns-head');
    /** @private @type {TurnRow[]} in the order of the document */
    this.rows = [];
    /** @private */
    this.first = 0;
    /** @private */
    this.activeKey = '';
    /** @private */
    this.rowPx = 44;
    /** @private */
    this.totalRows = -1;
    /** @private */
    this.draw = () => this.drawNow();
    grid.addEventListener('scroll', () => renderer.want(this.draw), { passive: true });
    grid.addEventListener('keydown', (event) => this.onKey(event));
    grid.addEventListener('click', (event) => this.onClick(event));
    new ResizeObserver(() => {
      this.rowPx = Number.parseFloat(getComputedStyle(grid).getPropertyValue('--row-px'));
      renderer.want(this.draw);
    }).observe(grid);
  }

  /** @param {number} numNew rows added on top */
  changed(numNew) {
    // Keep the scroll position when older turns are in view.
    if (numNew > 0 && this.grid.scrollTop > 0) {
      this.body.style.height = `${this.list.length * this.rowPx}px`;
      this.grid.scrollTop += numNew * this.rowPx;
    }
    this.renderer.want(this.draw);
  }

  /** @param {number} total of the turns of the query; -1 when unknown */
  setTotal(total) {
    this.totalRows = total;
    this.renderer.want(this.draw);
  }

  scrollToTop() {
    this.grid.scrollTop = 0;
    this.activeKey = '';
  }

  /** @private */
  drawNow() {
    const { list, grid, rowPx } = this;
    const total = Math.max(this.totalRows, list.length);
    grid.setAttribute('aria-rowcount', String(this.totalRows < 0 ? -1 : total + 1));
    this.body.style.height = `${list.length * rowPx}px`;
    const inSight = Math.ceil(grid.clientHeight / rowPx) + 1;
    const count = Math.min(list.length, inSight + 2 * SPARE);
    const top = Math.floor(grid.scrollTop / rowPx) - SPARE;
    const first = Math.max(0, Math.min(top, list.length - count));
    this.moveTo(first, count);
    let activeId = '';
    this.rows.forEach((row, index) => {
      const place = first + index;
      const shown = list.at(place);
      const isActive = shown.key === this.activeKey;
      row.show(shown, place, rowPx, isActive);
      if (isActive) activeId = row.element.id;
    });
    if (activeId) grid.setAttribute('aria-activedescendant', activeId);
    else grid.removeAttribute('aria-activedescendant');
    if (list.hasMore && first + count > list.length - 2 * inSight) void list.more();
  }

  /**
   * Create missing row elements, and reuse those that left the view at the other end.
   * @private
   * @param {number} first
   * @param {number} count
   */
  moveTo(first, count) {
    while (this.rows.length < count) {
      const row = new TurnRow(this.rows.length);
      this.rows.push(row);
      this.body.append(row.element);
    }
    while (this.rows.length > count) this.rows.pop()?.element.remove();
    const shift = first - this.first;
    this.first = first;
    if (Math.abs(shift) >= count) return;
    for (let moved = 0; moved < shift; moved += 1) {
      const row = /** @type {TurnRow} */ (this.rows.shift());
      this.rows.push(row);
      this.body.append(row.element);
    }
    for (let moved = 0; moved < -shift; moved += 1) {
      const row = /** @type {TurnRow} */ (this.rows.pop());
      this.rows.unshift(row);
      this.body.prepend(row.element);
    }
  }

  /**
   * @private
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    const { list } = this;
    const page = Math.max(1, Math.floor(this.grid.clientHeight / this.rowPx) - 2);
    const place = list.placeOf(this.activeKey);
    /** @type {Record<string, number>} */
    const targets = {
      ArrowDown: place + 1,
      ArrowUp: place < 0 ? 0 : place - 1,
      PageDown: place + page,
      PageUp: place - page,
      Home: 0,
      End: list.length - 1,
    };
    if (event.ctrlKey || event.metaKey || event.altKey || list.length === 0) return;
    if ((event.key === 'Enter' || event.key === ' ') && place >= 0) {
      event.preventDefault();
      this.onOpen(list.at(place));
    } else if (event.key in targets) {
      event.preventDefault();
      this.activate(Math.max(0, Math.min(targets[event.key], list.length - 1)));
    }
  }

  /**
   * @private
   * @param {MouseEvent} event
   */
  onClick(event) {
    const clicked = /** @type {Element} */ (event.target).closest('.turn-row');
    const index = this.rows.findIndex((row) => row.element === clicked);
    if (index < 0) return;
    const row = this.list.at(this.first + index);
    this.activeKey = row.key;
    this.renderer.want(this.draw);
    this.onOpen(row);
  }

  /**
   * @private
   * @param {number} place
   */
  activate(place) {
    this.activeKey = this.list.at(place).key;
    const { grid, rowPx } = this;
    const inSight = grid.clientHeight - this.head.offsetHeight - rowPx;
    const top = place * rowPx;
    grid.scrollTop = Math.max(Math.min(grid.scrollTop, top), top - inSight);
    this.renderer.want(this.draw);
  }
}

/** Reusable row element of the table. */
class TurnRow {
  /** @param {number} number of the element */
  constructor(number) {
    this.element = cell('turn-row', 'row');
    this.element.id = `turn-row-${number}`;
    /** @private */
    this.drawn = '';
    /** @private */
    this.place = -1;
    /** @private */
    this.time = cell('turn-time');
    /** @private */
    this.call = element('bdi', 'turn-session');
    /** @private */
    this.agent = element('bdi', 'turn-agent');
    /** @private */
    this.wait = cell('turn-wait');
    /** @private */
    this.track = element('div', 'track');
    this.track.setAttribute('role', 'img');
    /** @private */
    this.note = cell('turn-note');
    const call = cell('turn-call');
    call.append(this.call, this.agent);
    const bar = cell('turn-bar');
    bar.append(this.track);
    this.element.append(this.time, call, this.wait, bar, this.note);
  }

  /**
   * @param {Row} row
   * @param {number} place
   * @param {number} rowPx
   * @param {boolean} isActive
   */
  show(row, place, rowPx, isActive) {
    if (place !== this.place) this.element.setAttribute('aria-rowindex', String(place + 2));
    this.place = place;
    const transform = `translateY(${place * rowPx}px)`;
    if (this.element.style.transform !== transform) this.element.style.transform = transform;
    if (this.element.ariaSelected !== String(isActive)) {
      this.element.ariaSelected = String(isActive);
    }
    const drawn = `${row.key} ${row.waitMs} ${row.note} ${row.atMs}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    write(this.time, row.atMs === null ? `turn ${row.turn}` : clockTime(row.atMs));
    this.time.title = dayAndTime(row.atMs);
    write(this.call, `${row.session} · ${row.turn}`);
    write(this.agent, [row.agent, row.profile].filter(Boolean).join(' · '));
    write(this.wait, row.waitMs === null ? '–' : milliseconds(row.waitMs));
    this.wait.dataset.verdict = row.within === null ? 'none' : row.within ? 'within' : 'over';
    write(this.note, row.note);
    this.drawTrack(row);
  }

  /**
   * @private
   * @param {Row} row
   */
  drawTrack({ exposedMs, budgetMs, waitMs }) {
    const parts = [];
    const words = [];
    let atMs = 0;
    for (const [index, ms] of exposedMs.entries()) {
      if (ms < DRAWN_MS) continue;
      const part = element('span', 'part');
      part.dataset.stage = STAGES[index];
      part.style.left = `${(100 * atMs) / AXIS_MS}%`;
      part.style.width = `${(100 * Math.min(ms, Math.max(0, AXIS_MS - atMs))) / AXIS_MS}%`;
      words.push(`${STAGE_NAMES[STAGES[index]]} ${milliseconds(ms)}`);
      parts.push(part);
      atMs += ms;
    }
    const limit = element('span', 'limit');
    limit.style.left = `${(100 * Math.min(budgetMs, AXIS_MS)) / AXIS_MS}%`;
    this.track.replaceChildren(...parts, limit);
    this.track.toggleAttribute('data-beyond', waitMs !== null && waitMs > AXIS_MS);
    const said = words.length ? words.join(', ') : 'nothing to draw';
    this.track.setAttribute('aria-label', `${said}; budget ${milliseconds(budgetMs)}`);
  }
}

/**
 * @param {string} className
 * @param {string} [role]
 */
function cell(className, role = 'gridcell') {
  const made = element('div', className);
  made.setAttribute('role', role);
  return made;
}

// Line charts of the last minutes: SVG, a readout for pointer and arrow keys, and the same figures
// as a table.

import { element, say, svg } from './dom.js';

const HEIGHT = 132;
const EDGE = { left: 50, right: 6, top: 8, bottom: 20 };
/** Steps without a figure that a line goes over. */
const GAP_STEPS = 6;

/** A round number that is not below `value`: 1, 2 or 5, and zeros. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value * 0.999);
}

function ago(seconds) {
  if (seconds < 1) return 'now';
  return seconds < 120 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
}

export class Chart {
  /** `series`: `{ name, key, kind }`, of which `filled` ones stand on the axis. */
  constructor({ title, about, series, format }) {
    Object.assign(this, { title, series, format, steps: [], at: null });
    const id = `chart-${title.toLowerCase().replaceAll(/[^a-z]+/g, '-')}`;
    this.values = series.map(() => element('b'));
    this.time = element('span', { class: 'muted' });
    const legend = series.map(({ name, kind }, i) =>
      element('span', { class: 'key' }, element('i', { class: kind }), `${name} `, this.values[i]));
    this.described = svg('desc', { id: `${id}-about` }, about);
    this.drawn = svg('g');
    this.svg = svg('svg', {
      role: 'img', tabindex: '0', height: HEIGHT, 'aria-labelledby': `${id} ${id}-about`,
    }, svg('title', { id }, title), this.described, this.drawn);
    this.table = element('table', { class: 'plain' });
    this.numbers = element('details', {}, element('summary', {}, 'As a table'),
      element('div', { class: 'scroll', tabindex: '0' }, this.table));
    this.element = element('figure', { class: 'card' },
      element('figcaption', {}, element('h2', {}, title), element('div', { class: 'legend' },
        ...legend, this.time)), this.svg, this.numbers);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  listen() {
    this.svg.addEventListener('pointermove', (event) => {
      const { left } = this.svg.getBoundingClientRect();
      this.pick(Math.round((event.clientX - left - EDGE.left) / this.stride()));
    });
    this.svg.addEventListener('pointerleave', () => this.pick(null));
    this.svg.addEventListener('blur', () => this.pick(null));
    this.svg.addEventListener('keydown', (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === 'Escape') this.pick(null);
      if (by === undefined) return;
      event.preventDefault();
      this.pick((this.at ?? this.steps.length - 1) + by);
    });
    this.numbers.addEventListener('toggle', () => this.tabulate());
  }

  pick(at) {
    this.at = at === null || this.steps.length === 0
      ? null : Math.max(0, Math.min(this.steps.length - 1, at));
    this.draw();
  }

  stride() {
    const width = this.svg.clientWidth - EDGE.left - EDGE.right;
    return width / Math.max(this.steps.length - 1, 11);
  }

  show({ step_seconds, steps }) {
    // What is chosen stays the same step, while others come behind it.
    if (this.at !== null && steps.length === this.steps.length) this.at = Math.max(0, this.at - 1);
    Object.assign(this, { steps, seconds: step_seconds });
    this.draw();
    this.tabulate();
  }

  draw() {
    if (!this.svg.clientWidth) return;
    const all = this.steps.flatMap((step) => this.series.map(({ key }) => step[key] ?? 0));
    this.most = roundUp(Math.max(...all, 0));
    const lines = this.series.flatMap((series) => this.line(series));
    this.drawn.replaceChildren(...this.axes(), ...lines, ...this.cursor());
    const step = this.steps[this.at ?? this.steps.length - 1];
    this.series.forEach(({ key }, i) => say(this.values[i], this.format(step?.[key] ?? null)));
    say(this.time, this.at === null ? '' : ago(step.seconds_ago));
  }

  x(i) {
    return EDGE.left + i * this.stride();
  }

  y(value) {
    return EDGE.top + (HEIGHT - EDGE.top - EDGE.bottom) * (1 - value / this.most);
  }

  axes() {
    const right = this.svg.clientWidth - EDGE.right;
    const levels = [0, this.most / 2, this.most].flatMap((value) => [
      svg('line', { class: 'grid', x1: EDGE.left, x2: right, y1: this.y(value), y2: this.y(value) }),
      svg('text', { x: EDGE.left - 6, y: this.y(value) + 4, 'text-anchor': 'end' },
        value === 0 ? '0' : this.format(value).replace(/\.0+(?=\D|$)/, '')),
    ]);
    const last = Math.max(this.steps.length - 1, 0);
    const minutes = Math.round((last * (this.seconds ?? 5)) / 60);
    const marks = minutes >= 4 ? [minutes, Math.floor(minutes / 2)] : minutes > 0 ? [minutes] : [];
    const times = marks.map((minute) => {
      const at = Math.max(0, last - (minute * 60) / this.seconds);
      const anchor = at < 4 ? 'start' : 'middle';
      return svg('text', { x: this.x(at), y: HEIGHT - 5, 'text-anchor': anchor }, `−${minute} min`);
    });
    const now = svg('text', { x: this.x(last), y: HEIGHT - 5, 'text-anchor': last < 3 ? 'start' : 'end' },
      this.steps.length ? 'now' : 'first data in a few seconds');
    return [...levels, ...times, now];
  }

  line({ key, kind, filled }) {
    const points = this.steps.map((step, i) => [i, step[key]]);
    const known = points.filter(([, value]) => value !== null && value !== undefined);
    // Nothing to draw, and what is never there is not drawn along the axis.
    if (!known.some(([, value]) => value > 0 || filled)) return [];
    let path = '';
    let before = -Infinity;
    for (const [i, value] of known) {
      const at = `${this.x(i).toFixed(1)} ${this.y(value).toFixed(1)}`;
      // A dot, where there is nothing to draw a line from.
      path += i - before > GAP_STEPS ? `M${at}h0` : `L${at}`;
      before = i;
    }
    const line = svg('path', { class: `line ${kind}`, d: path });
    if (!filled || known.length !== points.length) return [line];
    const ground = `L${this.x(before)} ${this.y(0)}L${this.x(0)} ${this.y(0)}Z`;
    return [svg('path', { class: `area ${kind}`, d: path + ground }), line];
  }

  cursor() {
    if (this.at === null) return [];
    const x = this.x(this.at);
    return [svg('line', { class: 'cursor', x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom })];
  }

  /** Only while it is looked at. */
  tabulate() {
    if (!this.numbers.open) return;
    const head = ['When', ...this.series.map(({ name }) => name)];
    const rows = this.steps.toReversed().map((step) => [
      ago(step.seconds_ago), ...this.series.map(({ key }) => this.format(step[key])),
    ]);
    const row = (cells, tag) => element('tr', {}, ...cells.map((cell, i) =>
      element(tag, i ? { class: 'num' } : {}, cell)));
    this.table.replaceChildren(element('caption', { class: 'hidden' }, this.title),
      element('thead', {}, row(head, 'th')),
      element('tbody', {}, ...rows.map((cells) => row(cells, 'td'))));
  }
}

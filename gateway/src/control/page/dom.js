// Elements, and how figures are written. Text from outside becomes text nodes, never markup.

export const find = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Sets a text only where it differs, so that selections and live regions are left alone. */
export function say(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/**
 * A table that is kept up to date row by row, so that focus stays where it is. A column has a
 * `label`, perhaps a `kind` (a class), and `show(cell, item)`.
 */
export class Table {
  constructor(table, columns, keyOf) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.rows = new Map();
    this.body = element('tbody', { role: 'rowgroup' });
    const head = columns.map(({ label, kind }) =>
      element('th', { scope: 'col', role: 'columnheader', class: kind }, label));
    table.setAttribute('role', 'table');
    table.append(
      element('thead', { role: 'rowgroup' }, element('tr', { role: 'row' }, ...head)),
      this.body,
    );
  }

  show(items) {
    const left = new Set(this.rows.keys());
    let before = null;
    for (const item of items) {
      const key = this.keyOf(item);
      left.delete(key);
      const row = this.row(key);
      row.cells.forEach((cell, i) => this.columns[i].show(cell, item));
      const follows = before ? before.nextSibling : this.body.firstChild;
      if (follows !== row.element) this.body.insertBefore(row.element, follows);
      before = row.element;
    }
    for (const key of left) {
      this.rows.get(key).element.remove();
      this.rows.delete(key);
    }
  }

  row(key) {
    if (this.rows.has(key)) return this.rows.get(key);
    const cells = this.columns.map(({ label, kind }, i) => i === 0
      ? element('th', { scope: 'row', role: 'rowheader', class: kind })
      : element('td', { role: 'cell', class: kind, 'data-label': label }));
    const row = { element: element('tr', { role: 'row' }, ...cells), cells };
    this.rows.set(key, row);
    return row;
  }
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export const count = (n) => (n < 100_000 ? whole.format(n) : compact.format(n));

/** A rate: as many digits as say something. */
export function rate(n) {
  if (n === null || n === undefined) return '–';
  if (n === 0) return '0';
  if (n < 0.1) return n.toFixed(2);
  return n < 100 ? n.toFixed(1) : count(n);
}

export function money(n) {
  return n === 0 ? '0' : n.toFixed(n < 1 ? 4 : 2);
}

export function bytes(n) {
  const gigabytes = n / 2 ** 30;
  return gigabytes < 1 ? `${Math.round(n / 2 ** 20)} MiB` : `${gigabytes.toFixed(1)} GiB`;
}

/** A wait of a request. */
export function wait(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  return seconds < 60 ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : span(seconds);
}

/** How long something has been so. */
export function span(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

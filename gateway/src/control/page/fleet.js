// What is on the page while it has a key: figures, charts, tables, and what operators do to nodes.

import { ask } from './api.js';
import { Chart } from './charts.js';
import { element, find, rate, say, span, wait } from './dom.js';
import { tables } from './tables.js';

/** A node that is gone is shown for so long. */
const GONE_MS = 5 * 60_000;

/** Nodes that were seen, by name; what is lost has `lost`, when that was. */
const seen = new Map();
/** Names of nodes that an operator drains here. */
const drains = new Set();

const ASKS = {
  cordon: (node) => [`Cordon ${node.name}?`, `It gets no new requests. ${running(node, 'there')}`],
  drain: (node) => [`Drain ${node.name}?`, `It gets no new requests. ${running(node, 'on other nodes, or there if no other node can continue them')}`],
  uncordon: (node) => [`Uncordon ${node.name}?`, 'It gets requests again.'],
};

function requests(count) {
  return `${count} ${count === 1 ? 'request' : 'requests'}`;
}

/** What happens to the running requests of a node; they continue `where`. */
function running(node, where) {
  if (node.leased === 0) return 'It runs no requests of this gateway.';
  return `Its running requests (${node.leased}) continue ${where}.`;
}

const tiles = [
  ['Nodes ready', (o) => `${ready(o).length}/${o.nodes.length}`],
  ['Slots busy', (o) => `${sum(o.nodes, 'busy')}/${sum(ready(o), 'slots')}`],
  ['In flight', (o) => String(o.requests_in_flight)],
  ['Waiting', (o) => String(sum(o.queue, 'waiting') + o.retrying)],
  ['Requests/s', (o) => rate(o.minute.requests)],
  ['Tokens/s', (o) => rate(o.minute.completion_tokens)],
  ['First token p50', (o) => wait(o.minute.first_token_p50)],
  ['First token p95', (o) => wait(o.minute.first_token_p95)],
].map(([label, value]) => ({ value, figure: element('dd'), label }));

const sum = (all, key) => all.reduce((total, item) => total + item[key], 0);
const ready = ({ nodes }) => nodes.filter((n) => n.state === 'ready' && !n.cordoned && !n.ejected);

const charts = [
  new Chart({
    title: 'Time to first token',
    about: 'From the arrival of a request to the first token of its response, in steps of 5 seconds.',
    series: [
      { name: 'p50', key: 'first_token_p50', kind: 'first' },
      { name: 'p95', key: 'first_token_p95', kind: 'second' },
    ],
    format: wait,
  }),
  new Chart({
    title: 'Tokens per second',
    about: 'Completion and prompt tokens of finished requests, spread over their duration.',
    series: [
      { name: 'completion', key: 'completion_tokens', kind: 'first', filled: true },
      { name: 'prompt', key: 'prompt_tokens', kind: 'second' },
    ],
    format: rate,
  }),
  new Chart({
    title: 'Requests per second',
    about: 'Finished requests, and refused and failed ones among them.',
    series: [
      { name: 'all', key: 'requests', kind: 'first', filled: true },
      { name: 'refused', key: 'refused', kind: 'second' },
      { name: 'failed', key: 'failed', kind: 'third' },
    ],
    format: rate,
  }),
];

const showTables = tables(act);

export function begin() {
  find('tiles').replaceChildren(...tiles.map(({ label, figure }) =>
    element('div', {}, element('dt', {}, label), figure)));
  find('charts').replaceChildren(...charts.map((chart) => chart.element));
}

export function show(overview) {
  for (const { figure, value } of tiles) say(figure, value(overview));
  say(find('about'), `${overview.version} · up ${span(overview.uptime_seconds)}`);
  document.title = `${ready(overview).length}/${overview.nodes.length} ready – Flotilla`;
  const nodes = remember(overview.nodes);
  showTables(overview, nodes);
  followDrains(nodes);
}

export function showRecent(recent) {
  for (const chart of charts) chart.show(recent);
}

/** These nodes, and those that were here a moment ago. */
function remember(nodes) {
  const now = Date.now();
  const here = new Set(nodes.map((node) => node.name));
  for (const node of nodes) seen.set(node.name, { ...node, drains: drains.has(node.name) });
  for (const [name, node] of seen) {
    if (here.has(name)) continue;
    node.lost ??= now;
    node.busy = 0;
    if (now - node.lost > GONE_MS) seen.delete(name);
  }
  return [...seen.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

function result(text, kind) {
  const line = find('result');
  line.className = `result ${kind}`;
  say(line, text);
}

function followDrains(nodes) {
  for (const name of drains) {
    const node = nodes.find((n) => n.name === name);
    if (node && !node.lost && node.cordoned && node.leased > 0) {
      result(`${name} is draining: ${requests(node.leased)} left.`, 'warning');
      continue;
    }
    drains.delete(name);
    if (!node || node.lost) result(`${name} is gone.`, 'warning');
    else if (node.cordoned) result(`${name} is drained: it runs no requests of this gateway.`, 'good');
  }
}

async function act(action, node, button) {
  const [title, text] = ASKS[action](node);
  if (!await confirmed(title, text, action)) {
    button.focus();
    return;
  }
  try {
    await ask(`/admin/v1/nodes/${encodeURIComponent(node.name)}/${action}`, 'POST');
    if (action === 'drain') drains.add(node.name);
    else drains.delete(node.name);
    const done = { cordon: 'is cordoned', drain: 'is draining', uncordon: 'is uncordoned' };
    result(`${node.name} ${done[action]}.`, 'good');
    show(await ask('/admin/v1/overview'));
  } catch (error) {
    result(`${node.name}: ${action} failed: ${error.message}`, 'bad');
  }
  refocus(button);
}

/** The button may be hidden now: another one of its row takes the focus. */
function refocus(button) {
  const next = button.hidden ? [...button.parentElement.children].find((b) => !b.hidden) : button;
  next?.focus();
}

function confirmed(title, text, word) {
  const [dialog, yes, no] = ['confirm', 'confirm-yes', 'confirm-no'].map(find);
  say(find('confirm-title'), title);
  say(find('confirm-text'), text);
  say(yes, word);
  dialog.showModal();
  return new Promise((resolve) => {
    const end = (answer) => {
      dialog.close();
      resolve(answer);
    };
    yes.onclick = () => end(true);
    no.onclick = () => end(false);
    // Not when it is closed: browsers tell that late, when the next question may be open.
    dialog.oncancel = () => resolve(false);
  });
}

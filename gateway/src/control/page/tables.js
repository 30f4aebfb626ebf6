// Nodes, external endpoints, queue and tenants as tables.

import { Table, bytes, count, element, find, money, rate, say, span, wait } from './dom.js';

/** More slots than this are a bar. */
const SQUARES_MAX = 12;

/** The state of a node in a word, and how bad that is. */
export function stateOf(node) {
  if (node.lost) return ['gone', 'bad'];
  if (node.ejected) return ['ejected', 'bad'];
  if (node.drains) return ['draining', 'warning'];
  if (node.cordoned) return [node.state === 'ready' ? 'cordoned' : `${node.state}, cordoned`, 'warning'];
  return [node.state, node.state === 'ready' ? 'good' : 'warning'];
}

const name = { label: 'Node', show: (cell, node) => say(cell, node.name) };

const state = {
  label: 'State',
  show(cell, node) {
    const [word, kind] = stateOf(node);
    const since = node.lost ? ` ${span((Date.now() - node.lost) / 1000)}` : '';
    if (!cell.firstChild) cell.append(element('span'));
    cell.firstChild.className = `state ${kind}`;
    say(cell.firstChild, word + since);
    cell.parentElement.classList.toggle('gone', Boolean(node.lost));
  },
};

const slots = {
  label: 'Slots',
  kind: 'slots',
  show(cell, node) {
    if (!cell.firstChild) {
      cell.append(element('span', { class: 'squares', 'aria-hidden': 'true' }), element('span'));
    }
    const [squares, text] = cell.children;
    const busy = node.lost ? 0 : node.busy;
    const wanted = node.slots <= SQUARES_MAX ? node.slots : 10;
    const filled = node.slots <= SQUARES_MAX ? busy : Math.ceil((busy / node.slots) * 10);
    while (squares.children.length > wanted) squares.lastChild.remove();
    while (squares.children.length < wanted) squares.append(element('i'));
    [...squares.children].forEach((square, i) => square.classList.toggle('busy', i < filled));
    say(text, node.lost ? '–' : `${busy}/${node.slots}`);
  },
};

const models = {
  label: 'Model',
  kind: 'names',
  show: (cell, node) => say(cell, node.models.join(', ') || '–'),
};

const speed = (label, key) => ({
  label, kind: 'num', show: (cell, node) => say(cell, node.lost ? '–' : rate(node[key])),
});

// What only newer nodes tell.
const memory = {
  label: 'Memory',
  kind: 'num vital',
  show(cell, { vitals, lost }) {
    say(cell, vitals && !lost ? bytes(vitals.memory_resident_bytes) : '–');
    cell.title = vitals ? `${bytes(vitals.memory_available_bytes)} available` : '';
  },
};

const kv = {
  label: 'KV',
  kind: 'num vital',
  show(cell, { vitals, lost }) {
    const known = vitals?.kv_cells > 0 && !lost;
    say(cell, known ? `${Math.round((100 * vitals.kv_cells_in_use) / vitals.kv_cells)} %` : '–');
    cell.title = known ? `${count(vitals.kv_cells_cached)} cells cache prompt prefixes` : '';
  },
};

const ADDRESSES = { joined: 'joined', configured: 'static', external: 'external' };

const linked = {
  label: 'Linked',
  kind: 'num',
  show(cell, node) {
    say(cell, node.lost ? '–' : span(node.linked_seconds));
    cell.title = node.lost ? '' : `${ADDRESSES[node.address] ?? node.address}; engine restarts: ${node.engine_restarts}`;
  },
};

function actions(act) {
  return {
    label: 'Actions',
    kind: 'actions',
    show(cell, node) {
      if (!cell.firstChild) {
        for (const action of ['cordon', 'drain', 'uncordon']) {
          const button = element('button', { type: 'button', class: 'small' }, action);
          button.addEventListener('click', () => act(action, cell.node, button));
          cell.append(button);
        }
      }
      cell.node = node;
      const [cordon, drain, uncordon] = cell.children;
      cordon.hidden = node.lost || node.cordoned;
      drain.hidden = node.lost || node.drains || (node.cordoned && !node.leased);
      uncordon.hidden = node.lost || !node.cordoned;
      for (const button of cell.children) button.setAttribute('aria-label', `${button.textContent} ${node.name}`);
    },
  };
}

const spend = {
  label: 'Spent today',
  kind: 'num',
  show(cell, endpoint) {
    const most = endpoint.spend_day_max;
    say(cell, money(endpoint.spent_today) + (most === null ? '' : ` of ${money(most)}`));
    cell.classList.toggle('bad', most !== null && endpoint.spent_today >= most);
  },
};

function allowance({ left, limit } = {}) {
  return limit === undefined ? '–' : `${count(left)} of ${count(limit)}`;
}

const tenants = [
  { label: 'Tenant', show: (cell, tenant) => say(cell, tenant.name) },
  {
    label: 'Running',
    kind: 'num',
    show: (cell, { running, concurrent_max: most }) =>
      say(cell, most === null ? running : `${running} of ${most}`),
  },
  { label: 'Requests', kind: 'num', show: (cell, tenant) => say(cell, count(tenant.requests)) },
  { label: 'Refused', kind: 'num', show: (cell, tenant) => say(cell, count(tenant.refused)) },
  { label: 'Prompt tokens', kind: 'num', show: (cell, tenant) => say(cell, count(tenant.prompt_tokens)) },
  { label: 'Completion tokens', kind: 'num', show: (cell, tenant) => say(cell, count(tenant.completion_tokens)) },
  { label: 'Spent', kind: 'num', show: (cell, tenant) => say(cell, money(tenant.spent)) },
  {
    label: 'Left this minute',
    kind: 'num wide',
    show(cell, tenant) {
      const requests = allowance(tenant.requests_per_minute ?? undefined);
      const tokens = allowance(tenant.tokens_per_minute ?? undefined);
      const parts = [requests !== '–' && `${requests} requests`, tokens !== '–' && `${tokens} tokens`];
      say(cell, parts.filter(Boolean).join(', ') || '–');
      cell.classList.toggle('nothing', !parts.some(Boolean));
    },
  },
];

const queue = [
  { label: 'Class', show: (cell, row) => say(cell, row.class) },
  { label: 'Waiting', kind: 'num', show: (cell, row) => say(cell, count(row.waiting)) },
  { label: 'Longest', kind: 'num', show: (cell, row) => say(cell, wait(row.longest_wait_seconds)) },
];

const background = [
  { label: 'Kind', show: (cell, row) => say(cell, row.kind) },
  { label: 'Unfinished', kind: 'num', show: (cell, row) => say(cell, count(row.unfinished)) },
  {
    label: 'Oldest',
    kind: 'num',
    show: (cell, row) => say(cell, row.oldest_seconds === null ? '–' : span(row.oldest_seconds)),
  },
];

function showStore(table, store) {
  find('store-card').hidden = !store;
  if (!store) return;
  table.show([
    { kind: 'batches', ...store.batches },
    { kind: 'responses, jobs', ...store.tasks },
  ]);
  const state = find('store-state');
  state.className = store.available ? 'muted' : 'bad';
  say(state, store.available ? `${bytes(store.bytes)} stored` : 'The store fails: the log says why.');
}

/** Makes the tables; the result shows an overview in them. `act` is told which button was pressed. */
export function tables(act) {
  const speeds = [speed('Decode t/s', 'decode_tokens_per_second'), speed('Prefill t/s', 'prefill_tokens_per_second')];
  const byName = (item) => item.name;
  const all = {
    nodes: new Table(find('node-table'),
      [name, state, slots, models, ...speeds, memory, kv, linked, actions(act)], byName),
    external: new Table(find('external-table'),
      [{ ...name, label: 'Endpoint' }, state, { ...slots, label: 'In use' }, models, spend], byName),
    tenants: new Table(find('tenant-table'), tenants, byName),
    queue: new Table(find('queue-table'), queue, (row) => row.class),
    store: new Table(find('store-table'), background, (row) => row.kind),
  };
  return (overview, nodes) => {
    all.nodes.show(nodes);
    find('no-nodes').hidden = nodes.length > 0;
    find('node-table').hidden = nodes.length === 0;
    find('node-table').classList.toggle('without-vitals', !nodes.some((node) => node.vitals));
    all.external.show(overview.external);
    find('externals').hidden = overview.external.length === 0;
    all.tenants.show(overview.tenants);
    showStore(all.store, overview.store);
    const retrying = { class: 'retrying', waiting: overview.retrying, longest_wait_seconds: null };
    all.queue.show(overview.retrying ? [...overview.queue, retrying] : overview.queue);
  };
}

// Asks for the key, and then for the fleet, again and again.

import { Refused, ask, key } from './api.js';
import * as chat from './chat.js';
import { find, say } from './dom.js';
import * as fleet from './fleet.js';

const INTERVAL_MS = 1000;
const INTERVAL_LOST_MS = 2000;
/** The steps of the charts are 5 s long. */
const RECENT_EVERY = 5;

let is_open = false;
let round = 0;
/** Counts how often the page was opened: who looks for an earlier one stops. */
let opened = 0;

function lock(why) {
  is_open = false;
  chat.stop();
  key.forget();
  find('fleet').hidden = find('forget').hidden = find('skip').hidden = true;
  find('lock').hidden = false;
  document.title = 'Flotilla';
  link('', '');
  say(find('about'), '');
  say(find('refused'), why);
  find('key').value = '';
  find('key').focus();
}

function open() {
  is_open = true;
  opened += 1;
  round = 0;
  find('lock').hidden = true;
  find('fleet').hidden = find('forget').hidden = find('skip').hidden = false;
}

function link(text, kind) {
  const pill = find('link');
  pill.className = `pill ${kind}`;
  say(pill, text);
  find('fleet').classList.toggle('stale', kind === 'bad');
}

function show(overview) {
  fleet.show(overview);
  chat.showModels(overview.models);
  link('live', 'good');
}

/** A key that was refused, as its owner reads it. */
function refusal(error) {
  if (!(error instanceof Refused)) return 'The gateway does not respond. Is it running?';
  return error.status === 401 ? 'The admin key is wrong.' : error.message;
}

find('unlock').addEventListener('submit', async (event) => {
  event.preventDefault();
  const typed = find('key').value.trim();
  // Nothing else fits into a header.
  if (!/^[!-~]+$/.test(typed)) return lock(refusal(new Refused(401)));
  key.keep(typed);
  say(find('refused'), '');
  try {
    const overview = await ask('/admin/v1/overview');
    open();
    show(overview);
    find('nodes').focus({ preventScroll: true });
    look();
  } catch (error) {
    lock(refusal(error));
  }
});

find('forget').addEventListener('click', () => lock(''));

/** Nobody looks: nothing is asked. */
function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener('visibilitychange', resolve, { once: true });
  });
}

/** Until the key is forgotten. */
async function look() {
  const mine = opened;
  while (is_open && opened === mine) {
    let pause = INTERVAL_MS;
    try {
      if (round % RECENT_EVERY === 0) fleet.showRecent(await ask('/admin/v1/recent'));
      show(await ask('/admin/v1/overview'));
      round += 1;
    } catch (error) {
      if (error instanceof Refused && [401, 403].includes(error.status)) return lock(refusal(error));
      if (is_open) link('connection lost, reconnecting', 'bad');
      pause = INTERVAL_LOST_MS;
      round = 0;
    }
    await new Promise((resolve) => { setTimeout(resolve, pause); });
    await seen();
  }
}

fleet.begin();
chat.begin();
if (key.get()) {
  open();
  look();
} else {
  lock('');
}

// The playground: a chat through this gateway, with who answered it and how fast.

import { chat } from './api.js';
import { element, find, rate, say, wait } from './dom.js';

const MESSAGES_MAX = 40;

let messages = [];
/** Set while an answer comes. */
let current = null;

export function begin() {
  find('ask').addEventListener('submit', (event) => {
    event.preventDefault();
    send();
  });
  find('question').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      find('ask').requestSubmit();
    }
  });
  find('stop').addEventListener('click', () => current?.abort());
  find('new-chat').addEventListener('click', () => {
    current?.abort();
    messages = [];
    find('talk').replaceChildren();
    find('question').focus();
  });
}

/** The models that may be chosen. */
export function showModels(names) {
  const select = find('model');
  const shown = [...select.options].map((option) => option.value);
  if (names.length > 0 && shown.length === names.length && shown.every((name, i) => name === names[i])) return;
  const chosen = select.value;
  const options = names.map((name) => element('option', { value: name }, name));
  select.replaceChildren(...options);
  if (!options.length) select.append(element('option', { value: '' }, 'no models'));
  if (names.includes(chosen)) select.value = chosen;
}

export function stop() {
  current?.abort();
}

async function send() {
  const question = find('question').value.trim();
  if (current || !question) return;
  find('question').value = '';
  messages = [...messages, { role: 'user', content: question }].slice(-MESSAGES_MAX);
  bubble('user').append(question);
  current = new AbortController();
  wait_for_answer(true);
  const answer = new Answer(bubble('assistant'));
  try {
    await answer.stream(current.signal);
    answer.ends('');
  } catch (error) {
    answer.ends(current.signal.aborted ? 'stopped' : `failed: ${error.message}`, !current.signal.aborted);
  }
  if (answer.text) messages.push({ role: 'assistant', content: answer.text });
  else messages.pop();
  current = null;
  wait_for_answer(false);
}

function wait_for_answer(waits) {
  find('send').disabled = waits;
  find('stop').hidden = !waits;
  (waits ? find('stop') : find('question')).focus({ preventScroll: true });
}

function bubble(role) {
  const made = element('div', { class: `bubble ${role}` });
  find('talk').append(made);
  scroll();
  return made;
}

function scroll() {
  const talk = find('talk');
  talk.scrollTop = talk.scrollHeight;
}

/** One answer, with what is known of it. */
class Answer {
  constructor(place) {
    this.content = element('div', { class: 'content' });
    this.thoughts = element('div', { class: 'thoughts' });
    this.facts = element('div', { class: 'facts' });
    place.append(this.thoughts, this.content, this.facts);
    this.text = '';
    this.pieces = 0;
    this.begun = performance.now();
    say(this.facts, 'waiting …');
  }

  async stream(signal) {
    const request = {
      model: find('model').value,
      messages,
      max_tokens: Math.max(1, Number(find('tokens').value) || 256),
      stream: true,
      stream_options: { include_usage: true },
    };
    const { node, events } = await chat(request, signal);
    this.node = node;
    for await (const event of events) {
      if (event.usage) this.usage = event.usage;
      const delta = event.choices?.[0]?.delta;
      if (delta?.content || delta?.reasoning_content) this.add(delta);
      this.tell('');
    }
  }

  add({ content = '', reasoning_content = '' }) {
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
    this.text += content ?? '';
    this.content.append(content ?? '');
    this.thoughts.append(reasoning_content ?? '');
    scroll();
  }

  /** Node, time to the first token, speed; each once it is known. */
  tell(end) {
    const seconds = (this.last - this.first) / 1000;
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    const about = this.usage ? '' : '≈ ';
    const parts = [
      this.node ? `node ${this.node}` : this.first && 'unknown node',
      this.first && `first token ${wait((this.first - this.begun) / 1000)}`,
      seconds > 0 && tokens > 1 && `${about}${rate((tokens - 1) / seconds)} tokens/s`,
      this.first && `${about}${tokens} tokens`,
      end,
    ];
    say(this.facts, parts.filter(Boolean).join(' · '));
  }

  ends(how, is_bad = false) {
    this.tell(how);
    this.facts.classList.toggle('bad', is_bad);
    say(find('said'), how || `response from ${this.node ?? 'a node'}: ${this.text.slice(0, 400)}`);
    scroll();
  }
}

// The operators' API. The key lives in this tab's session storage and goes out in a header only.

const KEY = 'flotilla.key';
const TIMEOUT_MS = 5000;

export const key = {
  get: () => sessionStorage.getItem(KEY),
  keep: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/** The gateway answered, with something else than was asked for. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  return { authorization: `Bearer ${key.get() ?? ''}`, ...more };
}

async function refusal(response) {
  const told = await response.json().catch(() => null);
  return new Refused(response.status, told?.error?.message ?? `status ${response.status}`);
}

/** Asks for JSON. Throws `Refused`, or another error where the gateway is not reached. */
export async function ask(path, method = 'GET') {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(path, { method, headers: headers(), signal, cache: 'no-store' });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** Streams a chat: the node that answers, and a generator of events. */
export async function chat(request, signal) {
  const response = await fetch('/admin/v1/chat', {
    method: 'POST',
    headers: headers({ 'content-type': 'application/json', 'x-flotilla-class': 'interactive' }),
    body: JSON.stringify(request),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  return { node: response.headers.get('x-flotilla-endpoint'), events: events(response.body) };
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error('the response broke off');
    text += value;
    const blocks = text.split('\n\n');
    text = blocks.pop();
    for (const block of blocks) {
      const data = block.split('\n').find((line) => line.startsWith('data: '))?.slice(6);
      if (data === '[DONE]') return;
      if (data === undefined) continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

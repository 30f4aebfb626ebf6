// A browser that a test in Rust steers: it sends lines of JSON with code to run, and reads a line
// with what came of it. The browser ends with its input.
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const AsyncFunction = (async () => {}).constructor;
const STEP_MS = 60_000;

const args = ['--disable-dev-shm-usage'];
// Chromium's own sandbox does not work for root.
if (process.getuid() === 0) args.push('--no-sandbox');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args });

/** What a page did that a test must know of. */
const problems = [];
let page = null;

async function open({ url, width = 1440, height = 900, dark = false }) {
  await page?.context().close();
  const context = await browser.newContext({
    viewport: { width, height }, colorScheme: dark ? 'dark' : 'light', reducedMotion: 'reduce',
  });
  page = await context.newPage();
  page.setDefaultTimeout(STEP_MS / 2);
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) problems.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => problems.push(`error: ${error.message}`));
  page.on('request', (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== new URL(url).origin && protocol !== 'data:') {
      problems.push(`request: ${request.url()}`);
    }
  });
  const response = await page.goto(url);
  return response.headers();
}

async function run({ code, arg }) {
  const late = new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`not done in time: ${code}`)), STEP_MS).unref();
  });
  const work = code === 'open' ? open(arg) : new AsyncFunction('page', 'arg', code)(page, arg);
  return Promise.race([work, late]);
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { value: (await run(JSON.parse(line))) ?? null };
  } catch (error) {
    const text = await page?.locator('body').innerText().catch(() => '') ?? '';
    answer = { error: `${error.message}\n--- the page:\n${text}` };
  }
  process.stdout.write(`${JSON.stringify({ ...answer, problems: problems.splice(0) })}\n`);
}
await browser.close();

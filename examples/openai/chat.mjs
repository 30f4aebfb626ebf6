// A client of the gateway with OpenAI's package for Node: streaming, retries, structured output, tools.
//
//   npm install openai zod
//   export OPENAI_BASE_URL=https://llm.example.com/v1 OPENAI_API_KEY=sk-flotilla-...
//   MODEL=flotilla-demo node chat.mjs
//
// For a self-signed certificate, also: export NODE_EXTRA_CA_CERTS=cert.pem

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

// Names of models: curl -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models"
const model = process.env.MODEL;

// The package repeats a request that gets 429 (a rate limit of your key) or 503 (no node can serve it in
// time). It waits for as long as the response's Retry-After says. The default is 2 retries. A request waits
// in the gateway's queue while all nodes are busy: set a timeout that you would wait yourself.
const client = new OpenAI({ maxRetries: 5, timeout: 600_000 });

const ask = (text) => ({ model, messages: [{ role: "user", content: text }], temperature: 0 });

async function stream() {
  const request = { ...ask("What is the capital of France?"), stream: true };
  for await (const chunk of await client.chat.completions.create(request))
    process.stdout.write(chunk.choices[0]?.delta.content ?? "");
  console.log();
}

async function structuredOutput() {
  // The schema becomes a grammar: the response always has this form.
  const capital = z.object({ capital: z.string().max(40) });
  const request = ask("As JSON: What is the capital of France?");
  const response_format = zodResponseFormat(capital, "capital");
  const response = await client.chat.completions.parse({ ...request, response_format });
  console.log(response.choices[0].message.parsed.capital);
}

async function tools() {
  const getTime = ({ city }) => ({ time: "10:20" });
  const tool = {
    type: "function",
    function: {
      name: "get_time",
      description: "Get the local time of a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      function: getTime,
      parse: JSON.parse,
    },
  };
  // Calls the function and sends its results until the model answers in words.
  const runner = client.chat.completions.runTools({ ...ask("Time in Madrid?"), tools: [tool] });
  console.log(await runner.finalContent());
}

async function errors() {
  try {
    await client.chat.completions.create({ ...ask("Hello"), model: "no-such-model" });
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    // The operator finds the request in the gateway's log by its id.
    console.log(error.status, error.code, Boolean(error.requestID));
  }
}

await stream();
await structuredOutput();
await tools();
await errors();

// Uses the gateway as web applications for Ollama do: through the official `ollama` package for Node.

import assert from "node:assert/strict";
import { Ollama } from "ollama";

const MODEL = "flotilla-demo";
const ANSWER = "The capital of France is Paris.";
const host = process.env.OPENAI_BASE_URL.replace(/\/v1$/, "");
const headers = { Authorization: `Bearer ${process.env.OPENAI_API_KEY}` };
const client = new Ollama({ host, headers });
const ask = (content, more) => ({
  model: MODEL,
  messages: [{ role: "user", content }],
  options: { temperature: 0 },
  ...more,
});
const ASKED = ask("What is the capital of France?");
const TOOL = {
  type: "function",
  function: {
    name: "get_time",
    description: "Get the local time of a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

async function lists_the_models() {
  assert.deepEqual((await client.list()).models.map((m) => m.model), [`${MODEL}:latest`]);
  assert((await client.show({ model: MODEL })).capabilities.includes("completion"));
}

async function chats() {
  const answer = await client.chat(ASKED);
  assert.deepEqual([answer.message.content, answer.done_reason], [ANSWER, "stop"]);
  assert(answer.prompt_eval_count > 0 && answer.eval_count > 0);
}

async function streams_a_chat() {
  const chunks = [];
  for await (const chunk of await client.chat({ ...ASKED, stream: true })) chunks.push(chunk);
  assert(chunks.length > 3, "it came in one piece");
  assert.equal(chunks.map((c) => c.message.content).join(""), ANSWER);
  assert.equal(chunks.at(-1).done, true);
}

async function calls_tools_and_answers_from_what_they_say() {
  const asked = ask("Time in Madrid?", { tools: [TOOL] });
  const { message } = await client.chat(asked);
  const [call] = message.tool_calls;
  assert.deepEqual([call.function.name, call.function.arguments], ["get_time", { city: "Madrid" }]);
  const result = { role: "tool", tool_name: "get_time", content: '{"time": "10:20"}' };
  const answer = await client.chat({ ...asked, messages: [...asked.messages, message, result] });
  assert.equal(answer.message.content, "It is 10:20 in Madrid.");
}

async function raises_the_errors_that_applications_catch() {
  await assert.rejects(client.chat({ ...ASKED, model: "gpt-9" }), (error) => {
    assert.equal(error.status_code, 404);
    return true;
  });
}

for (const test of [
  lists_the_models,
  chats,
  streams_a_chat,
  calls_tools_and_answers_from_what_they_say,
  raises_the_errors_that_applications_catch,
]) {
  await test();
  console.log("ok:", test.name);
}

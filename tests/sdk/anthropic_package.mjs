// Uses the gateway as a web application for Claude would: through the official `@anthropic-ai/sdk`
// package for Node, which finds endpoint and key in ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.
// LIMITED_KEY may ask for one thing at a time.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const MODEL = "flotilla-demo";
const ANSWER = "The capital of France is Paris.";
const ask = (text, more) => ({
  model: MODEL,
  max_tokens: 100,
  temperature: 0,
  messages: [{ role: "user", content: text }],
  ...more,
});
const ASKED = ask("What is the capital of France?");
const TEXT_FOR_TOOL = "Time in Madrid?";
const TOOL = {
  name: "get_time",
  description: "Get the local time of a city",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

const settings = { maxRetries: 0, timeout: 60_000 };
const client = new Anthropic(settings);
const create = (body, options) => client.messages.create(body, options);

async function lists_the_models() {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert.deepEqual(models, [MODEL]);
  assert.equal((await client.models.retrieve(MODEL)).type, "model");
}

async function creates_a_message() {
  const { data, request_id } = await create(ASKED).withResponse();
  assert.deepEqual(data.content.map((block) => [block.type, block.text]), [["text", ANSWER]]);
  assert.deepEqual([data.role, data.model, data.stop_reason], ["assistant", MODEL, "end_turn"]);
  assert(data.usage.output_tokens > 0);
  assert(request_id && request_id === data._request_id);
}

async function counts_tokens_as_a_message_does() {
  const { model, messages } = ASKED;
  const { input_tokens } = await client.messages.countTokens({ model, messages });
  const { usage } = await create(ASKED);
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
}

async function streams_text() {
  const pieces = [];
  const stream = client.messages.stream(ASKED).on("text", (piece) => pieces.push(piece));
  const message = await stream.finalMessage();
  assert(pieces.length > 2, "it came in one piece");
  assert.equal(pieces.join(""), ANSWER);
  assert.equal(message.content[0].text, ANSWER);
  assert.equal(message.stop_reason, "end_turn");
  const events = [];
  for await (const event of await create({ ...ASKED, stream: true })) events.push(event.type);
  assert.deepEqual([events[0], events.at(-1)], ["message_start", "message_stop"]);
}

async function says_why_it_stopped() {
  const cut = await create({ ...ASKED, max_tokens: 1 });
  assert.deepEqual([cut.stop_reason, cut.usage.output_tokens], ["max_tokens", 1]);
  const stopped = await create({ ...ASKED, stop_sequences: ["Spain", "France"] });
  assert.equal(stopped.content[0].text, "The capital of ");
  assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ["stop_sequence", "France"]);
}

async function follows_instructions() {
  const asked = ask("What colour is milk?", { system: "Answer as JSON." });
  assert.equal((await create(asked)).content[0].text, '{"colour": "white"}');
}

async function calls_tools() {
  const asked = ask(TEXT_FOR_TOOL, { tools: [TOOL], tool_choice: { type: "any" } });
  const called = await create(asked);
  const streamed = await client.messages.stream(asked).finalMessage();
  for (const message of [called, streamed]) {
    assert.equal(message.stop_reason, "tool_use");
    const [{ type, name, input }] = message.content;
    assert.deepEqual([type, name, input], ["tool_use", "get_time", { city: "Madrid" }]);
  }
}

async function runs_tools_until_there_is_an_answer() {
  const cities = [];
  const { input_schema: inputSchema, ...rest } = TOOL;
  const run = ({ city }) => {
    cities.push(city);
    return '{"time": "10:20"}';
  };
  for (const stream of [false, true]) {
    const tools = [betaTool({ ...rest, inputSchema, run })];
    const runner = client.beta.messages.toolRunner(ask(TEXT_FOR_TOOL, { tools, stream }));
    assert.equal((await runner.runUntilDone()).content[0].text, "It is 10:20 in Madrid.");
  }
  assert.deepEqual(cities, ["Madrid", "Madrid"]);
}

async function answers_in_the_form_of_a_schema() {
  const asked = ask("As JSON: What is the capital of France?", {
    output_config: { format: zodOutputFormat(z.object({ capital: z.string() })) },
  });
  assert.deepEqual((await client.messages.parse(asked)).parsed_output, { capital: "Paris" });
}

async function raises_the_errors_that_applications_catch() {
  const wrong = new Anthropic({ ...settings, apiKey: "sk-wrong" });
  await assert.rejects(wrong.messages.create(ASKED), (error) => {
    assert(error instanceof Anthropic.AuthenticationError);
    assert.equal(error.type, "authentication_error");
    return true;
  });
  for (const stream of [false, true]) {
    await assert.rejects(create({ ...ASKED, model: "gpt-9", stream }), (error) => {
      assert(error instanceof Anthropic.NotFoundError);
      assert(error.requestID, "an error without request-id");
      return true;
    });
  }
  await assert.rejects(create({ ...ASKED, temperature: 9 }), Anthropic.BadRequestError);
  await assert.rejects(create(ask("word ".repeat(3000))), /prompt is too long/);
}

async function leaves_a_stream_midway_and_asks_again() {
  const stream = client.messages.stream({ ...ASKED, max_tokens: 900, temperature: 1.5 });
  for await (const _ of stream) break;
  assert.equal((await create(ASKED)).content[0].text, ANSWER);
}

async function tries_again_when_it_is_told_to() {
  const statuses = [];
  let first;
  const limited = new Anthropic({
    ...settings,
    apiKey: process.env.LIMITED_KEY,
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      statuses.push(response.status);
      if (statuses.length === 3) first.controller.abort();
      return response;
    },
  });
  // A long response, so that it is there to be in the way.
  const schema = { type: "array", items: { type: "integer" }, minItems: 400 };
  const long = { ...ASKED, max_tokens: 900, output_config: { format: { type: "json_schema", schema } } };
  first = await limited.messages.create({ ...long, stream: true });
  await assert.rejects(limited.messages.create(ASKED), Anthropic.RateLimitError);
  const answer = await limited.messages.create(ASKED, { maxRetries: 1 });
  assert.equal(answer.content[0].text, ANSWER);
  assert.deepEqual(statuses, [200, 429, 429, 200]);
}

for (const test of [
  lists_the_models,
  creates_a_message,
  counts_tokens_as_a_message_does,
  streams_text,
  says_why_it_stopped,
  follows_instructions,
  calls_tools,
  runs_tools_until_there_is_an_answer,
  answers_in_the_form_of_a_schema,
  raises_the_errors_that_applications_catch,
  leaves_a_stream_midway_and_asks_again,
  tries_again_when_it_is_told_to,
]) {
  await test();
  console.log("ok:", test.name);
}

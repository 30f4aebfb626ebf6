// Uses the gateway as a web application would: through the official `openai` package for Node,
// which finds endpoint and key in OPENAI_BASE_URL and OPENAI_API_KEY. LIMITED_KEY may ask for one
// thing at a time.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const MODEL = "flotilla-demo";
const QUESTION = [{ role: "user", content: "What is the capital of France?" }];
const ANSWER = "The capital of France is Paris.";
const ASKED = { model: MODEL, messages: QUESTION, temperature: 0 };
// It goes on for as long as it may, so that it is there to be interrupted.
const LONG = { model: MODEL, messages: QUESTION, max_tokens: 900, n: 4, stream: true, ignore_eos: true };
const TOOL = {
  type: "function",
  function: {
    name: "get_time",
    description: "Get the local time of a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const CALLING = { model: MODEL, messages: [{ role: "user", content: "Time in Madrid?" }], temperature: 0 };

const settings = { maxRetries: 0, timeout: 60_000 };
const client = new OpenAI(settings);
const chat = (body, options) => client.chat.completions.create(body, options);

async function lists_the_models() {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert.deepEqual(models, [MODEL]);
  assert.equal((await client.models.retrieve(MODEL)).object, "model");
}

async function chats() {
  const { data, response, request_id } = await chat(ASKED).withResponse();
  assert.equal(data.choices[0].message.content, ANSWER);
  assert.equal(data.choices[0].finish_reason, "stop");
  assert(data.usage.prompt_tokens > 0 && data.usage.completion_tokens > 0);
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert(request_id && request_id === response.headers.get("x-request-id"));
}

async function streams_a_chat_with_its_usage() {
  const chunks = [];
  for await (const chunk of await chat({ ...ASKED, stream: true, stream_options: { include_usage: true } }))
    chunks.push(chunk);
  const choices = chunks.flatMap((c) => c.choices);
  assert.equal(choices.map((c) => c.delta.content ?? "").join(""), ANSWER);
  assert.equal(choices[0].delta.role, "assistant");
  assert.equal(choices.at(-1).finish_reason, "stop");
  assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
  assert(chunks.at(-1).usage.completion_tokens > 0 && chunks.at(-1).choices.length === 0);

  let text = "";
  const runner = client.chat.completions.stream(ASKED).on("content", (piece) => (text += piece));
  assert.equal(await runner.finalContent(), ANSWER);
  assert.equal(text, ANSWER);
}

async function completes_text() {
  const prompt = "<|im_start|>user\nSpell cat.<|im_end|>\n<|im_start|>assistant\n";
  const asked = { model: MODEL, prompt, temperature: 0, max_tokens: 20 };
  assert.equal((await client.completions.create(asked)).choices[0].text, "c-a-t");
  let text = "";
  for await (const chunk of await client.completions.create({ ...asked, stream: true }))
    text += chunk.choices[0]?.text ?? "";
  assert.equal(text, "c-a-t");
}

async function honours_seed_stop_n_and_max_tokens() {
  const sampled = async () => (await chat({ ...ASKED, temperature: 1.5, seed: 3, max_tokens: 12 })).choices[0];
  assert.equal((await sampled()).message.content, (await sampled()).message.content);
  const stopped = await chat({ ...ASKED, stop: ["France"] });
  assert.equal(stopped.choices[0].message.content, "The capital of ");
  const two = await chat({ ...ASKED, n: 2, logprobs: true });
  assert.deepEqual(two.choices.map((c) => [c.index, c.message.content]), [[0, ANSWER], [1, ANSWER]]);
  assert.equal(two.choices[1].logprobs.content.map((t) => t.token).join(""), ANSWER);
  const short = await chat({ ...ASKED, max_completion_tokens: 1 });
  assert.equal(short.choices[0].finish_reason, "length");
  assert.equal(short.usage.completion_tokens, 1);
}

async function calls_tools() {
  const required = { ...CALLING, tools: [TOOL], tool_choice: "required" };
  const [choice] = (await chat(required)).choices;
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.message.content, null);
  const [call] = choice.message.tool_calls;
  assert.equal(call.function.name, "get_time");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Madrid" });

  const streamed = (await client.chat.completions.stream(required).finalMessage()).tool_calls[0];
  assert.notEqual(streamed.id, call.id);
  assert.deepEqual(streamed.function, call.function);
}

async function runs_tools_until_there_is_an_answer() {
  const cities = [];
  const get_time = ({ city }) => {
    cities.push(city);
    return { time: "10:20" };
  };
  const tool = { ...TOOL, function: { ...TOOL.function, function: get_time, parse: JSON.parse } };
  for (const stream of [false, true]) {
    const runner = client.chat.completions.runTools({ ...CALLING, tools: [tool], stream });
    assert.equal(await runner.finalContent(), "It is 10:20 in Madrid.");
  }
  assert.deepEqual(cities, ["Madrid", "Madrid"]);
}

async function answers_in_the_form_of_a_schema() {
  const asked = {
    ...ASKED,
    messages: [{ role: "user", content: "As JSON: What is the capital of France?" }],
    response_format: zodResponseFormat(z.object({ capital: z.string() }), "answer"),
  };
  const whole = await client.chat.completions.parse(asked);
  assert.deepEqual(whole.choices[0].message.parsed, { capital: "Paris" });
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, { capital: "Paris" });
}

async function creates_and_streams_responses() {
  const asked = { model: MODEL, input: QUESTION, temperature: 0 };
  const whole = await client.responses.create(asked);
  assert.deepEqual([whole.output_text, whole.status], [ANSWER, "completed"]);
  let text = "";
  const stream = client.responses.stream(asked).on("response.output_text.delta", ({ delta }) => (text += delta));
  assert.equal((await stream.finalResponse()).output_text, ANSWER);
  assert.equal(text, ANSWER);
}

async function calls_tools_in_responses() {
  const asked = { model: MODEL, temperature: 0, tools: [{ type: "function", strict: false, ...TOOL.function }] };
  const first = await client.responses.create({ ...asked, input: CALLING.messages });
  const call = first.output.find((item) => item.type === "function_call");
  assert.deepEqual([call.name, JSON.parse(call.arguments)], ["get_time", { city: "Madrid" }]);
  const result = { type: "function_call_output", call_id: call.call_id, output: '{"time": "10:20"}' };
  const answer = await client.responses.create({ ...asked, previous_response_id: first.id, input: [result] });
  assert.equal(answer.output_text, "It is 10:20 in Madrid.");
}

async function raises_the_errors_that_applications_catch() {
  const wrong = new OpenAI({ ...settings, apiKey: "sk-wrong" });
  await assert.rejects(wrong.chat.completions.create(ASKED), (error) => {
    assert(error instanceof OpenAI.AuthenticationError);
    assert.equal(error.code, "invalid_api_key");
    return true;
  });
  await assert.rejects(chat({ ...ASKED, model: "gpt-9" }), (error) => {
    assert(error instanceof OpenAI.NotFoundError);
    assert.deepEqual([error.code, error.param], ["model_not_found", "model"]);
    assert(error.requestID, "an error without x-request-id");
    return true;
  });
  await assert.rejects(chat({ ...ASKED, temperature: 9, stream: true }), (error) => {
    assert(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
}

async function leaves_a_stream_midway_and_asks_again() {
  const leaving = new AbortController();
  let pieces = 0;
  for await (const _ of await chat(LONG, { signal: leaving.signal })) {
    pieces += 1;
    leaving.abort();
  }
  // What had already arrived may still be handed out.
  assert(pieces > 0 && pieces < 1000, `${pieces} pieces`);
  for await (const _ of await chat(LONG)) break;
  await assert.rejects(chat(ASKED, { signal: leaving.signal }), OpenAI.APIUserAbortError);
  assert.equal((await chat(ASKED)).choices[0].message.content, ANSWER);
}

async function tries_again_when_it_is_told_to() {
  const statuses = [];
  let first;
  const limited = new OpenAI({
    ...settings,
    apiKey: process.env.LIMITED_KEY,
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      statuses.push(response.status);
      if (statuses.length === 3) {
        assert.equal(response.headers.get("retry-after"), "1");
        first.controller.abort();
      }
      return response;
    },
  });
  first = await limited.chat.completions.create(LONG);
  await assert.rejects(limited.chat.completions.create(ASKED), OpenAI.RateLimitError);
  const answer = await limited.chat.completions.create(ASKED, { maxRetries: 1 });
  assert.equal(answer.choices[0].message.content, ANSWER);
  assert.deepEqual(statuses, [200, 429, 429, 200]);
}

async function asks_many_things_at_the_same_time() {
  const answers = await Promise.all(Array.from({ length: 8 }, () => chat(ASKED)));
  assert(answers.every((a) => a.choices[0].message.content === ANSWER));
}

for (const test of [
  lists_the_models,
  chats,
  streams_a_chat_with_its_usage,
  completes_text,
  honours_seed_stop_n_and_max_tokens,
  calls_tools,
  runs_tools_until_there_is_an_answer,
  answers_in_the_form_of_a_schema,
  creates_and_streams_responses,
  calls_tools_in_responses,
  raises_the_errors_that_applications_catch,
  leaves_a_stream_midway_and_asks_again,
  tries_again_when_it_is_told_to,
  asks_many_things_at_the_same_time,
]) {
  await test();
  console.log("ok:", test.name);
}

// Uses the gateway as web applications do: through Vercel's AI SDK, the `ai` package, in OpenAI's API and
// in Anthropic's. It finds the gateway in OPENAI_BASE_URL and the key in OPENAI_API_KEY.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const ANSWER = "The capital of France is Paris.";
const TEXT = "What is the capital of France?";
const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
const providers = [
  createOpenAICompatible({ name: "flotilla", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true }),
  createAnthropic({ baseURL, apiKey }),
];
const ask = (provider, prompt, more) => ({
  model: provider("flotilla-demo"),
  prompt,
  temperature: 0,
  maxOutputTokens: 100,
  maxRetries: 0,
  ...more,
});

async function generates_text(provider) {
  const { text, finishReason, usage } = await generateText(ask(provider, TEXT));
  assert.deepEqual([text, finishReason], [ANSWER, "stop"]);
  assert(usage.inputTokens > 0 && usage.outputTokens > 0);
}

async function streams_text(provider) {
  const stream = streamText(ask(provider, TEXT));
  const pieces = [];
  for await (const piece of stream.textStream) pieces.push(piece);
  assert(pieces.length > 2, "it came in one piece");
  assert.equal(pieces.join(""), ANSWER);
  assert((await stream.usage).outputTokens > 0);
}

const time_tool = (cities) =>
  tool({
    description: "Get the local time of a city",
    inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
    execute: ({ city }) => {
      cities.push(city);
      return { time: "10:20" };
    },
  });

async function runs_tools_until_there_is_an_answer(provider) {
  const cities = [];
  const get_time = time_tool(cities);
  const asked = ask(provider, "Time in Madrid?", { tools: { get_time }, stopWhen: stepCountIs(3) });
  const { steps } = await generateText(asked);
  const streamed = streamText(asked);
  await streamed.consumeStream();
  for (const all of [steps, await streamed.steps]) {
    assert.deepEqual(all.map((step) => step.finishReason), ["tool-calls", "stop"]);
    assert.match(all[1].text, /10:20/);
  }
  assert.deepEqual(cities, ["Madrid", "Madrid"]);
}

async function answers_in_the_form_of_a_schema(provider) {
  const output = Output.object({ schema: z.object({ capital: z.string() }) });
  const asked = ask(provider, `As JSON: ${TEXT}`, { output });
  assert.equal(typeof (await generateText(asked)).output.capital, "string");
}

async function has_tools_and_answers_in_the_form_of_a_schema(provider) {
  // Of Anthropic's models that it does not know, the SDK asks for the object as a call, which the demo model has not
  // learnt.
  if (provider !== providers[0]) return;
  const output = Output.object({ schema: z.object({ capital: z.string().max(40) }) });
  const cities = [];
  const more = { output, tools: { get_time: time_tool(cities) }, stopWhen: stepCountIs(3) };
  const said = await generateText(ask(provider, `As JSON: ${TEXT}`, more));
  assert.equal(typeof said.output.capital, "string");
  assert.deepEqual(cities, []);
}

async function raises_the_errors_that_applications_catch(provider) {
  await assert.rejects(generateText({ ...ask(provider, TEXT), model: provider("gpt-9") }), (error) => {
    assert(APICallError.isInstance(error));
    assert.deepEqual([error.statusCode, error.isRetryable], [404, false]);
    return true;
  });
}

for (const provider of providers)
  for (const test of [
    generates_text,
    streams_text,
    runs_tools_until_there_is_an_answer,
    answers_in_the_form_of_a_schema,
    has_tools_and_answers_in_the_form_of_a_schema,
    raises_the_errors_that_applications_catch,
  ]) {
    await test(provider);
    console.log("ok:", test.name);
  }

"""Uses the gateway as an application would: through the official `openai` package, which
finds endpoint and key in OPENAI_BASE_URL and OPENAI_API_KEY."""

import asyncio
import json

import openai
import pydantic

from common import ANSWER, GET_TIME, MODEL, QUESTION, TEXT, TEXT_FOR_TOOL, TOO_LONG, raises, run

client = openai.OpenAI(max_retries=0, timeout=60)


def lists_the_models():
    models = list(client.models.list())
    assert [m.id for m in models] == [MODEL], models
    assert client.models.retrieve(MODEL).object == "model"


def chats():
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == ANSWER, answer
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def streams_a_chat_with_its_usage():
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER, text
    assert len({c.id for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices


def completes_text():
    prompt = "<|im_start|>user\nSpell cat.<|im_end|>\n<|im_start|>assistant\n"
    answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=20)
    assert answer.choices[0].text == "c-a-t", answer
    stream = client.completions.create(model=MODEL, prompt=prompt, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == "c-a-t"


def honours_seed_stop_and_max_tokens():
    def sampled(seed):
        return client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=1.5, seed=seed, max_tokens=12)

    assert sampled(3).choices[0].message.content == sampled(3).choices[0].message.content
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stop=["France"])
    assert answer.choices[0].message.content == "The capital of ", answer
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=1)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 1


def tells_logprobs_and_gives_several_answers():
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, n=2, logprobs=True, top_logprobs=2
    )
    assert [c.index for c in answer.choices] == [0, 1]
    assert all(c.message.content == ANSWER for c in answer.choices), answer
    tokens = answer.choices[1].logprobs.content
    assert "".join(t.token for t in tokens) == ANSWER, tokens
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in tokens)


def calls_tools():
    messages = [{"role": "user", "content": TEXT_FOR_TOOL}]
    asked = dict(model=MODEL, messages=messages, temperature=0, max_tokens=100)
    asked |= dict(tools=[GET_TIME], tool_choice="required")
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None, answer
    call = answer.message.tool_calls[0]
    assert call.function.name == "get_time" and "city" in json.loads(call.function.arguments), call
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert any(e.type == "tool_calls.function.arguments.delta" for e in events)
    assert (final.id, final.function.name) != (call.id, "") and final.function.arguments == call.function.arguments


class City(pydantic.BaseModel):
    name: str
    people: int


def answers_in_the_form_of_a_class():
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=City, temperature=0, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, City), answer


def follows_a_conversation():
    messages = [
        {"role": "user", "content": "My name is Grace."},
        {"role": "assistant", "content": "Nice to meet you, Grace."},
        {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert answer.choices[0].message.content == "Your name is Grace.", answer


def creates_responses():
    response = client.responses.create(model=MODEL, input=TEXT, temperature=0)
    assert response.output_text == ANSWER and response.status == "completed", response
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens > 0
    [message] = response.output
    assert (message.type, message.role) == ("message", "assistant"), message


def streams_responses():
    with client.responses.stream(model=MODEL, input=TEXT, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(pieces) > 2 and "".join(pieces) == final.output_text == ANSWER, pieces
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events))), numbers


def calls_tools_in_responses():
    tool = {"type": "function", **GET_TIME["function"]}
    asked = dict(model=MODEL, tools=[tool], temperature=0, max_output_tokens=100)
    first = client.responses.create(input=TEXT_FOR_TOOL, **asked)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_time", {"city": "Madrid"}), call
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"time": "10:20"}'}
    question = {"role": "user", "content": TEXT_FOR_TOOL}
    for more in (dict(input=[question, *first.output, result]), dict(previous_response_id=first.id, input=[result])):
        assert client.responses.create(**more, **asked).output_text == "It is 10:20 in Madrid.", more


def continues_and_deletes_stored_responses():
    first = client.responses.create(model=MODEL, input="My name is Grace.", temperature=0)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(
        model=MODEL, previous_response_id=first.id, input="What is my name?", temperature=0
    )
    assert second.previous_response_id == first.id and "Grace" in second.output_text, second
    client.responses.delete(first.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(first.id))


def answers_in_the_form_of_a_class_in_responses():
    response = client.responses.parse(
        model=MODEL, input=TEXT, text_format=City, temperature=0, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, City), response


def raises_the_errors_that_applications_catch():
    def ask(the_client=client, model=MODEL, messages=QUESTION):
        return the_client.chat.completions.create(model=model, messages=messages)

    wrong = openai.OpenAI(api_key="sk-wrong", max_retries=0)
    error = raises(openai.AuthenticationError, lambda: ask(wrong))
    assert error.code == "invalid_api_key", error
    error = raises(openai.NotFoundError, lambda: ask(model="gpt-9"))
    assert error.code == "model_not_found" and error.param == "model", error
    long = [{"role": "user", "content": TOO_LONG}]
    error = raises(openai.BadRequestError, lambda: ask(messages=long))
    assert error.code == "context_length_exceeded" and "1024" in error.message, error
    assert error.request_id, "an error without x-request-id"


async def works_asynchronously():
    many = openai.AsyncOpenAI(max_retries=0, timeout=60)
    asked = [many.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0) for _ in range(8)]
    answers = await asyncio.gather(*asked)
    assert all(a.choices[0].message.content == ANSWER for a in answers)
    await many.close()


run(
    lists_the_models,
    chats,
    streams_a_chat_with_its_usage,
    completes_text,
    honours_seed_stop_and_max_tokens,
    tells_logprobs_and_gives_several_answers,
    calls_tools,
    answers_in_the_form_of_a_class,
    follows_a_conversation,
    creates_responses,
    streams_responses,
    calls_tools_in_responses,
    continues_and_deletes_stored_responses,
    answers_in_the_form_of_a_class_in_responses,
    raises_the_errors_that_applications_catch,
    works_asynchronously,
)

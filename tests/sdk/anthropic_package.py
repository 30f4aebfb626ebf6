"""Uses the gateway as programs for Claude do: through the official `anthropic` package, which finds
endpoint and key in ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY."""

import asyncio
import json

import anthropic
import pydantic

from common import ANSWER, GET_TIME, MODEL, QUESTION, TEXT_FOR_JSON, TEXT_FOR_TOOL, TOO_LONG, raises, run

client = anthropic.Anthropic(max_retries=0, timeout=60)
FUNCTION = GET_TIME["function"]
TOOL = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
# Newer versions of the package have no argument for it.
ASKED = dict(model=MODEL, max_tokens=100, messages=QUESTION, extra_body={"temperature": 0})


def asked(text, **more):
    return ASKED | dict(messages=[{"role": "user", "content": text}]) | more


def lists_the_models():
    page = client.models.list()
    assert [m.id for m in page] == [MODEL] and not page.has_more, page
    model = client.models.retrieve(MODEL)
    assert (model.type, model.id) == ("model", MODEL) and model.created_at.year >= 1970, model


def creates_a_message():
    message = client.messages.create(**ASKED)
    [block] = message.content
    assert (block.type, block.text) == ("text", ANSWER), message
    assert (message.role, message.model, message.stop_reason) == ("assistant", MODEL, "end_turn"), message
    assert message.id.startswith("msg_") and message._request_id, message
    assert message.usage.output_tokens > 0


def counts_tokens_as_a_message_does():
    prompt = {name: value for name, value in ASKED.items() if name in ("model", "messages")}
    counted = client.messages.count_tokens(**prompt).input_tokens
    usage = client.messages.create(**ASKED).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens > 0, (counted, usage)
    with_tool = client.messages.count_tokens(**prompt, system="Be brief.", tools=[TOOL]).input_tokens
    assert with_tool > counted


def streams_text():
    with client.messages.stream(**ASKED) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(pieces) > 2 and "".join(pieces) == ANSWER, pieces
    assert message.content[0].text == ANSWER and message.stop_reason == "end_turn", message
    assert message.usage.output_tokens == client.messages.create(**ASKED).usage.output_tokens
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 0, message.usage
    events = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert events[:2] == ["message_start", "content_block_start"], events
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"], events


def follows_instructions_and_a_conversation():
    text = client.messages.create(**asked("What colour is milk?", system="Answer as JSON.")).content[0].text
    assert json.loads(text) == {"colour": "white"}, text
    blocks = [{"type": "text", "text": "Answer as JSON.", "cache_control": {"type": "ephemeral"}}]
    assert client.messages.create(**asked("What colour is milk?", system=blocks)).content[0].text == text
    messages = [
        {"role": "user", "content": "My name is Grace."},
        {"role": "assistant", "content": [{"type": "text", "text": "Nice to meet you, Grace."}]},
        {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
    ]
    assert client.messages.create(**ASKED | dict(messages=messages)).content[0].text == "Your name is Grace."


def says_why_it_stopped():
    cut = client.messages.create(**ASKED | dict(max_tokens=1))
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 1, cut
    for sequences in (["France"], ["Spain", "France"]):
        stopped = client.messages.create(**ASKED, stop_sequences=sequences)
        assert stopped.content[0].text == "The capital of ", stopped
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "France"), stopped
        with client.messages.stream(**ASKED, stop_sequences=sequences) as stream:
            streamed = stream.get_final_message()
        assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "France"), streamed
    whole = client.messages.create(**ASKED, stop_sequences=["Spain"])
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None), whole


def result_of(call):
    assert (call.name, call.input) == ("get_time", {"city": "Madrid"}), call
    content = [{"type": "text", "text": '{"time": "10:20"}'}]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": content}]}


def calls_tools_and_answers_from_what_they_say():
    offered = asked(TEXT_FOR_TOOL, tools=[TOOL])
    called = client.messages.create(**offered)
    assert called.stop_reason == "tool_use", called
    with client.messages.stream(**offered) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert streamed.stop_reason == "tool_use" and json.loads("".join(parts)) == {"city": "Madrid"}, parts
    for message in (called, streamed):
        call = message.content[-1]
        turns = [{"role": "assistant", "content": message.content}, result_of(call)]
        answer = client.messages.create(**offered | dict(messages=offered["messages"] + turns))
        assert answer.content[0].text == "It is 10:20 in Madrid.", answer


def calls_the_tool_that_it_must_call():
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_time"}):
        [call] = client.messages.create(**ASKED, tools=[TOOL], tool_choice=choice).content
        assert call.name == "get_time" and isinstance(call.input["city"], str), call
    message = client.messages.create(**ASKED, tools=[TOOL], tool_choice={"type": "none"})
    assert message.content[0].text == ANSWER, message


def runs_tools_until_there_is_an_answer():
    cities = []

    @anthropic.beta_tool(name="get_time", description=FUNCTION["description"], input_schema=FUNCTION["parameters"])
    def get_time(city: str) -> str:
        cities.append(city)
        return '{"time": "10:20"}'

    for stream in (False, True):
        runner = client.beta.messages.tool_runner(**asked(TEXT_FOR_TOOL), tools=[get_time], stream=stream)
        assert runner.until_done().content[0].text == "It is 10:20 in Madrid."
    assert cities == ["Madrid", "Madrid"]


class Answer(pydantic.BaseModel):
    capital: str


def answers_in_the_form_of_a_class():
    message = client.messages.parse(**asked(TEXT_FOR_JSON), output_format=Answer)
    assert message.parsed_output == Answer(capital="Paris"), message
    form = {"type": "json_schema", "schema": anthropic.transform_schema(Answer)}
    message = client.messages.create(**asked(TEXT_FOR_JSON), output_config={"format": form})
    assert json.loads(message.content[0].text) == {"capital": "Paris"}, message
    with client.messages.stream(**asked(TEXT_FOR_JSON), output_format=Answer) as stream:
        assert stream.get_final_message().parsed_output == Answer(capital="Paris")


def raises_the_errors_that_applications_catch():
    def error(kind, the_client=client, **more):
        return raises(kind, lambda: the_client.messages.create(**ASKED | more))

    wrong = anthropic.Anthropic(api_key="sk-wrong", max_retries=0)
    assert error(anthropic.AuthenticationError, wrong).type == "authentication_error"
    wrong = anthropic.Anthropic(auth_token="sk-wrong", api_key=None, max_retries=0)
    error(anthropic.AuthenticationError, wrong)
    assert error(anthropic.NotFoundError, model="gpt-9").type == "not_found_error"
    assert error(anthropic.BadRequestError, extra_body={"temperature": 9}).type == "invalid_request_error"
    long = error(anthropic.BadRequestError, messages=[{"role": "user", "content": TOO_LONG}])
    # Programs look for these words.
    assert "prompt is too long" in long.message and "1024" in long.message, long.message
    assert long.request_id and long.body["request_id"] == long.request_id, long.body
    raises(anthropic.NotFoundError, lambda: client.models.retrieve("gpt-9"))
    with_stream = raises(anthropic.NotFoundError, lambda: client.messages.create(**ASKED | dict(model="gpt-9"), stream=True))
    assert with_stream.body["error"]["type"] == "not_found_error", with_stream.body


def accepts_a_key_as_a_token():
    token = anthropic.Anthropic(auth_token=client.api_key, api_key=None, max_retries=0)
    assert token.messages.create(**ASKED).content[0].text == ANSWER


async def works_asynchronously():
    async with anthropic.AsyncAnthropic(max_retries=0, timeout=60) as many:
        messages = await asyncio.gather(*[many.messages.create(**ASKED) for _ in range(8)])
        assert all(message.content[0].text == ANSWER for message in messages)
        async with many.messages.stream(**ASKED) as stream:
            assert "".join([piece async for piece in stream.text_stream]) == ANSWER


run(
    lists_the_models,
    creates_a_message,
    counts_tokens_as_a_message_does,
    streams_text,
    follows_instructions_and_a_conversation,
    says_why_it_stopped,
    calls_tools_and_answers_from_what_they_say,
    calls_the_tool_that_it_must_call,
    runs_tools_until_there_is_an_answer,
    answers_in_the_form_of_a_class,
    raises_the_errors_that_applications_catch,
    accepts_a_key_as_a_token,
    works_asynchronously,
)

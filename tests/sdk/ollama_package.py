"""Uses the gateway as programs for Ollama do: through the official `ollama` package."""

import asyncio
import os

import ollama
import pydantic

from common import ANSWER, GET_TIME, MODEL, QUESTION, TEXT, TEXT_FOR_JSON, TEXT_FOR_TOOL, raises, run

SETTINGS = dict(host=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), timeout=60)
HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
client = ollama.Client(headers=HEADERS, **SETTINGS)
ASKED = dict(model=MODEL, messages=QUESTION, options={"temperature": 0})


def lists_the_models():
    assert [m.model for m in client.list().models] == [f"{MODEL}:latest"]
    assert "completion" in client.show(MODEL).capabilities
    assert [m.model for m in client.ps().models] == [f"{MODEL}:latest"]


def chats():
    answer = client.chat(**ASKED)
    assert answer.message.content == ANSWER and answer.done and answer.done_reason == "stop", answer
    assert answer.prompt_eval_count > 0 and answer.eval_count > 0, answer
    # The node's own; a short text may arrive all at once, and then its tokens take no time of their own.
    assert answer.prompt_eval_duration + answer.eval_duration > 0, answer
    assert answer.total_duration > 0, answer


def streams_a_chat():
    chunks = list(client.chat(**ASKED, stream=True))
    assert len(chunks) > 3 and "".join(c.message.content or "" for c in chunks) == ANSWER, chunks
    assert [c.done for c in chunks].index(True) == len(chunks) - 1


def generates():
    assert client.generate(MODEL, TEXT, options={"temperature": 0}).response == ANSWER
    chunks = client.generate(MODEL, TEXT, options={"temperature": 0}, stream=True)
    assert "".join(chunk.response for chunk in chunks) == ANSWER


def calls_tools_and_answers_from_what_they_say():
    messages = [{"role": "user", "content": TEXT_FOR_TOOL}]
    asked = ASKED | dict(tools=[GET_TIME])
    said = client.chat(**asked | dict(messages=messages)).message
    [call] = said.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_time", {"city": "Madrid"}), call
    messages += [said, {"role": "tool", "tool_name": "get_time", "content": '{"time": "10:20"}'}]
    answer = client.chat(**asked | dict(messages=messages)).message
    assert answer.content == "It is 10:20 in Madrid.", answer


class Answer(pydantic.BaseModel):
    capital: str


def answers_in_the_form_of_a_class():
    asked = ASKED | dict(messages=[{"role": "user", "content": TEXT_FOR_JSON}])
    answer = client.chat(**asked, format=Answer.model_json_schema())
    assert Answer.model_validate_json(answer.message.content) == Answer(capital="Paris"), answer


def raises_the_errors_that_applications_catch():
    error = raises(ollama.ResponseError, lambda: client.chat(**ASKED | dict(model="gpt-9")))
    assert error.status_code == 404, error
    wrong = ollama.Client(headers={"Authorization": "Bearer sk-wrong"}, **SETTINGS)
    error = raises(ollama.ResponseError, lambda: wrong.chat(**ASKED))
    assert error.status_code == 401, error


async def works_asynchronously():
    many = ollama.AsyncClient(headers=HEADERS, **SETTINGS)
    answers = await asyncio.gather(*[many.chat(**ASKED) for _ in range(8)])
    assert all(answer.message.content == ANSWER for answer in answers)


run(
    lists_the_models,
    chats,
    streams_a_chat,
    generates,
    calls_tools_and_answers_from_what_they_say,
    answers_in_the_form_of_a_class,
    raises_the_errors_that_applications_catch,
    works_asynchronously,
)

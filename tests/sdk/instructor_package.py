"""Uses the gateway as programs that want objects do: through `instructor`, which makes tools or
schemas of pydantic's classes, validates what comes and asks again."""

from typing import Literal

import instructor
import openai
import pydantic
from instructor.core import InstructorRetryException

from common import ANSWER, MODEL, TEXT, TEXT_FOR_JSON, TEXT_FOR_TOOL, raises, run

MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
SETTINGS = dict(max_retries=0, timeout=60)


def client_for(mode, **more):
    return instructor.from_openai(openai.OpenAI(**SETTINGS | more), mode=mode)


def asked(text, form, **more):
    messages = [{"role": "user", "content": text}]
    # instructor's own count: it asks once.
    return dict(model=MODEL, messages=messages, response_model=form, temperature=0, max_retries=0) | more


# The demo model has learnt to call a function of this name.
class get_time(pydantic.BaseModel):
    """Get the local time of a city"""

    city: str


class Answer(pydantic.BaseModel):
    capital: str = pydantic.Field(max_length=40)


class Closed(pydantic.BaseModel):
    """A toy that may add fields of its own does not end."""

    model_config = pydantic.ConfigDict(extra="forbid")


class Part(Closed):
    name: str = pydantic.Field(max_length=8)
    unit: Literal["celsius", "fahrenheit"]


class Whole(Closed):
    """Classes in classes, and what may be absent."""

    parts: list[Part] = pydantic.Field(min_length=1, max_length=3)
    degrees: int = pydantic.Field(ge=-40, le=40)
    note: str | None = pydantic.Field(max_length=8)


def makes_objects_of_tool_calls():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
        made = client_for(mode).chat.completions.create(**asked(TEXT_FOR_TOOL, get_time))
        assert isinstance(made, get_time) and made.city == "Madrid", made


def makes_objects_of_answers_with_a_schema():
    client = client_for(instructor.Mode.JSON_SCHEMA)
    made, completion = client.chat.completions.create_with_completion(**asked(TEXT_FOR_JSON, Answer))
    assert isinstance(made, Answer) and made.capital == "Paris", made
    assert completion.choices[0].message.content == '{"capital": "Paris"}' and completion.usage.completion_tokens > 0


def makes_objects_of_objects():
    for mode in MODES:
        for temperature in (0, 1):
            form = asked(TEXT, Whole, temperature=temperature, seed=3, max_tokens=300)
            assert isinstance(client_for(mode).chat.completions.create(**form), Whole)


def passes_text_on_where_no_class_is_given():
    answer = client_for(instructor.Mode.TOOLS).chat.completions.create(**asked(TEXT, None))
    assert answer.choices[0].message.content == ANSWER, answer


def streams_objects_that_are_not_complete_yet():
    for mode in MODES:
        stream = client_for(mode).chat.completions.create_partial(**asked(TEXT_FOR_JSON, Answer))
        made = [answer.capital or "" for answer in stream]
        assert len(made) > 2 and all(made[-1].startswith(piece) for piece in made), made
    assert made[-1] == "Paris", made


def asks_again_when_an_answer_does_not_pass():
    for mode in MODES:
        seen = []

        class Doubted(Answer):
            @pydantic.field_validator("capital")
            def is_doubted_once(cls, capital):
                seen.append(capital)
                assert len(seen) > 1, "think again"
                return capital

        made = client_for(mode).chat.completions.create(**asked(TEXT_FOR_JSON, Doubted, max_retries=1, max_tokens=100))
        assert [made.capital] == seen[1:], (made, seen)


def raises_the_errors_that_applications_catch():
    def cause(client, **more):
        call = client.chat.completions.create
        return raises(InstructorRetryException, lambda: call(**asked(TEXT_FOR_JSON, Answer, **more))).__cause__

    for mode in MODES:
        error = cause(client_for(mode, api_key="sk-wrong"))
        assert isinstance(error, openai.AuthenticationError) and error.code == "invalid_api_key", error
        error = cause(client_for(mode), model="gpt-9")
        assert isinstance(error, openai.NotFoundError) and error.code == "model_not_found", error


async def works_asynchronously():
    for mode, text, form, whole in (
        (instructor.Mode.TOOLS, TEXT_FOR_TOOL, get_time, {"city": "Madrid"}),
        (instructor.Mode.JSON_SCHEMA, TEXT_FOR_JSON, Answer, {"capital": "Paris"}),
    ):
        async with openai.AsyncOpenAI(**SETTINGS) as many:
            client = instructor.from_openai(many, mode=mode)
            made = await client.chat.completions.create(**asked(text, form))
            assert made.model_dump() == whole, made


run(
    makes_objects_of_tool_calls,
    makes_objects_of_answers_with_a_schema,
    makes_objects_of_objects,
    passes_text_on_where_no_class_is_given,
    streams_objects_that_are_not_complete_yet,
    asks_again_when_an_answer_does_not_pass,
    raises_the_errors_that_applications_catch,
    works_asynchronously,
)

"""Uses the gateway as agents do: through `pydantic-ai`, in OpenAI's API and in Anthropic's."""

import os

import pydantic
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, Tool
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from common import ANSWER, MODEL, TEXT, TEXT_FOR_JSON, TEXT_FOR_TOOL, run

KEY = os.environ["OPENAI_API_KEY"]


def over_openai(model=MODEL):
    provider = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key=KEY)
    return OpenAIChatModel(model, provider=provider)


def over_anthropic(model=MODEL):
    provider = AnthropicProvider(base_url=os.environ["ANTHROPIC_BASE_URL"], api_key=KEY)
    return AnthropicModel(model, provider=provider)


APIS = (over_openai, over_anthropic)
SETTINGS = dict(max_tokens=100, extra_body={"temperature": 0})


def agent_of(model, **more):
    return Agent(model, model_settings=SETTINGS, **more)


def answers():
    for api in APIS:
        result = agent_of(api()).run_sync(TEXT)
        assert result.output == ANSWER and result.usage.output_tokens > 0, result


async def streams():
    for api in APIS:
        async with agent_of(api()).run_stream(TEXT) as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
        assert len(pieces) > 2 and "".join(pieces) == ANSWER, pieces


def time_tool(cities):
    def get_time(ctx, city: str) -> str:
        cities.append(city)
        return '{"time": "10:20"}'

    # pydantic-ai's own schema has more fields than the one that the demo model learnt.
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return Tool.from_schema(get_time, "get_time", "Get the local time of a city", schema, takes_ctx=True)


def runs_tools_until_there_is_an_answer():
    for api in APIS:
        cities = []
        tool = time_tool(cities)
        result = agent_of(api(), tools=[tool]).run_sync(TEXT_FOR_TOOL)
        assert result.output == "It is 10:20 in Madrid." and cities == ["Madrid"], (result, cities)


class Answer(pydantic.BaseModel):
    capital: str = pydantic.Field(max_length=40)


def answers_in_the_form_of_a_class():
    result = agent_of(over_openai(), output_type=NativeOutput(Answer)).run_sync(TEXT_FOR_JSON)
    assert result.output == Answer(capital="Paris"), result


def runs_tools_until_there_is_an_answer_in_the_form_of_a_class():
    cities = []
    agent = agent_of(over_openai(), tools=[time_tool(cities)], output_type=NativeOutput(Answer))
    assert agent.run_sync(TEXT_FOR_JSON).output == Answer(capital="Paris") and not cities
    assert isinstance(agent.run_sync(TEXT_FOR_TOOL).output, Answer) and "Madrid" in cities, cities


def raises_the_errors_that_applications_catch():
    for api in APIS:
        try:
            agent_of(api("gpt-9")).run_sync(TEXT)
        except ModelHTTPError as error:
            assert error.status_code == 404, error
        else:
            raise AssertionError("no error")


run(
    answers,
    streams,
    runs_tools_until_there_is_an_answer,
    answers_in_the_form_of_a_class,
    runs_tools_until_there_is_an_answer_in_the_form_of_a_class,
    raises_the_errors_that_applications_catch,
)

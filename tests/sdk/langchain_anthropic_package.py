"""Uses the gateway as chains for Claude do: through `langchain-anthropic`, which finds endpoint and key
in ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY."""

import os

# Read when the package is imported. Nothing is reported to anybody.
os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")

import anthropic
import pydantic
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from common import ANSWER, GET_TIME, MODEL, TEXT, TEXT_FOR_JSON, TEXT_FOR_TOOL, TOO_LONG, raises, run


def chat_model(**more):
    settings = dict(model=MODEL, max_tokens=100, max_retries=0, timeout=60, model_kwargs={"extra_body": {"temperature": 0}})
    return ChatAnthropic(**settings | more)


model = chat_model()


def invokes():
    answer = model.invoke(TEXT)
    assert isinstance(answer, AIMessage) and answer.content == ANSWER, answer
    assert answer.response_metadata["stop_reason"] == "end_turn", answer
    usage = answer.usage_metadata
    assert usage["input_tokens"] > 0 and usage["output_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def streams_with_the_usage():
    chunks = list(model.stream(TEXT))
    assert len([c for c in chunks if c.content]) > 2, "it came in one piece"
    whole = sum(chunks[1:], chunks[0])
    assert whole.text == ANSWER, whole
    assert whole.usage_metadata["output_tokens"] == model.invoke(TEXT).usage_metadata["output_tokens"]


async def works_asynchronously():
    # A client of its own, which ends with this event loop.
    many = chat_model()
    assert (await many.ainvoke(TEXT)).content == ANSWER
    assert "".join([chunk.text async for chunk in many.astream(TEXT)]) == ANSWER
    assert [a.content for a in await many.abatch([TEXT] * 4)] == [ANSWER] * 4


def follows_a_conversation_and_stops():
    messages = [
        SystemMessage("You are a helpful assistant."),
        HumanMessage("My name is Grace."),
        AIMessage("Nice to meet you, Grace."),
        HumanMessage([{"type": "text", "text": "What is my name?"}]),
    ]
    assert model.invoke(messages).content == "Your name is Grace."
    stopped = model.invoke(TEXT, stop=["France"])
    assert stopped.content == "The capital of ", stopped
    assert stopped.response_metadata["stop_sequence"] == "France", stopped


@tool
def get_time(city: str) -> str:
    """Get the local time of a city"""
    assert city == "Madrid"
    return '{"time": "10:20"}'


def calls_tools_and_answers_from_what_they_say():
    # What langchain makes of the function has another order than the one that the model learnt.
    offered = model.bind_tools([GET_TIME])
    called = offered.invoke(TEXT_FOR_TOOL)
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("get_time", {"city": "Madrid"}), call
    said = get_time.invoke(call)
    assert isinstance(said, ToolMessage) and said.tool_call_id == call["id"]
    assert offered.invoke([HumanMessage(TEXT_FOR_TOOL), called, said]).content == "It is 10:20 in Madrid."
    chunks = list(model.bind_tools([GET_TIME], tool_choice="any").stream(TEXT_FOR_TOOL))
    [call] = sum(chunks[1:], chunks[0]).tool_calls
    assert (call["name"], call["args"]) == ("get_time", {"city": "Madrid"}), call


class Answer(pydantic.BaseModel):
    """A capital."""

    capital: str


def answers_in_the_form_of_a_class():
    formed = model.with_structured_output(Answer, method="json_schema")
    assert formed.invoke(TEXT_FOR_JSON) == Answer(capital="Paris")


def counts_tokens():
    counted = model.get_num_tokens_from_messages([HumanMessage(TEXT)])
    assert counted == model.invoke(TEXT).usage_metadata["input_tokens"]


def raises_the_errors_that_applications_catch():
    raises(anthropic.AuthenticationError, lambda: chat_model(api_key="sk-wrong").invoke(TEXT))
    raises(anthropic.NotFoundError, lambda: chat_model(model="gpt-9").invoke(TEXT))
    raises(anthropic.NotFoundError, lambda: list(chat_model(model="gpt-9").stream(TEXT)))
    raises(ContextOverflowError, lambda: model.invoke(TOO_LONG))


run(
    invokes,
    streams_with_the_usage,
    works_asynchronously,
    follows_a_conversation_and_stops,
    calls_tools_and_answers_from_what_they_say,
    answers_in_the_form_of_a_class,
    counts_tokens,
    raises_the_errors_that_applications_catch,
)

"""Uses the gateway as chains and agents do: through `langchain-openai`."""

import os

# Read when the package is imported. Nothing is reported to anybody.
os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")

import openai
import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.exceptions import ContextOverflowError
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from common import ANSWER, GET_TIME, MODEL, TEXT, TEXT_FOR_JSON, TEXT_FOR_TOOL, TOO_LONG, raises, run


def chat_model(**more):
    return ChatOpenAI(**dict(model=MODEL, temperature=0, max_retries=0, timeout=60) | more)


model = chat_model(stream_usage=True)


def invokes():
    answer = model.invoke(TEXT)
    assert isinstance(answer, AIMessage) and answer.content == ANSWER, answer
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == MODEL
    usage = answer.usage_metadata
    assert usage["input_tokens"] > 0 and usage["output_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def streams_with_the_usage():
    chunks = list(model.stream(TEXT))
    assert len([c for c in chunks if c.content]) > 2, "it came in one piece"
    whole = sum(chunks[1:], chunks[0])
    assert whole.content == ANSWER, whole
    assert whole.usage_metadata["total_tokens"] == model.invoke(TEXT).usage_metadata["total_tokens"]
    assert whole.response_metadata["finish_reason"] == "stop"


async def works_asynchronously():
    # A client of its own, which ends with this event loop.
    many = chat_model()
    assert (await many.ainvoke(TEXT)).content == ANSWER
    assert "".join([chunk.content async for chunk in many.astream(TEXT)]) == ANSWER
    answers = await many.abatch([TEXT] * 4)
    assert [a.content for a in answers] == [ANSWER] * 4


def answers_batches():
    capitals = {"France": "Paris", "Italy": "Rome", "Peru": "Lima", "Norway": "Oslo"}
    answers = model.batch([f"What is the capital of {country}?" for country in capitals])
    assert [a.content for a in answers] == [f"The capital of {c} is {t}." for c, t in capitals.items()]


def follows_a_conversation():
    messages = [
        SystemMessage("You are a helpful assistant."),
        HumanMessage("My name is Grace."),
        AIMessage("Nice to meet you, Grace."),
        HumanMessage([{"type": "text", "text": "What is my name?"}]),
    ]
    assert model.invoke(messages).content == "Your name is Grace."


def runs_a_chain_with_a_prompt_template():
    prompt = ChatPromptTemplate.from_messages([("system", "Answer as JSON."), ("human", "What colour is {thing}?")])
    chain = prompt | model | StrOutputParser()
    assert chain.invoke({"thing": "milk"}) == '{"colour": "white"}'
    assert "".join(chain.stream({"thing": "milk"})) == '{"colour": "white"}'


def honours_stop_seed_n_and_logprobs():
    assert model.invoke(TEXT, stop=["France"]).content == "The capital of "
    assert chat_model(max_tokens=1).invoke(TEXT).response_metadata["finish_reason"] == "length"
    sampled = chat_model(temperature=1.5, seed=3, max_tokens=12)
    assert sampled.invoke(TEXT).content == sampled.invoke(TEXT).content
    answers = chat_model(n=2).generate([[HumanMessage(TEXT)]]).generations[0]
    assert [a.text for a in answers] == [ANSWER] * 2
    tokens = model.bind(logprobs=True).invoke(TEXT).response_metadata["logprobs"]["content"]
    assert "".join(t["token"] for t in tokens) == ANSWER, tokens


def completes_text():
    prompt = "<|im_start|>user\nSpell cat.<|im_end|>\n<|im_start|>assistant\n"
    completing = OpenAI(model=MODEL, temperature=0, max_tokens=20, max_retries=0, timeout=60)
    assert completing.invoke(prompt) == "c-a-t"
    assert "".join(completing.stream(prompt)) == "c-a-t"


@tool
def get_time(city: str) -> str:
    """Get the local time of a city"""
    assert city == "Madrid"
    return '{"time": "10:20"}'


def calls_tools_and_answers_from_what_they_say():
    # What langchain makes of the function has another order than the one that the model learnt.
    offered = model.bind_tools([GET_TIME])
    called = offered.invoke(TEXT_FOR_TOOL)
    assert called.content == "" and not called.invalid_tool_calls, called
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("get_time", {"city": "Madrid"}), call
    said = get_time.invoke(call)
    assert isinstance(said, ToolMessage) and said.tool_call_id == call["id"]
    assert offered.invoke([HumanMessage(TEXT_FOR_TOOL), called, said]).content == "It is 10:20 in Madrid."


def calls_the_tool_that_it_must_call():
    for choice in ("any", "get_time", True):
        [call] = model.bind_tools([get_time], tool_choice=choice).invoke(TEXT).tool_calls
        assert call["name"] == "get_time" and isinstance(call["args"]["city"], str), call
    chunks = list(model.bind_tools([GET_TIME], tool_choice="any").stream(TEXT_FOR_TOOL))
    [call] = sum(chunks[1:], chunks[0]).tool_calls
    assert (call["name"], call["args"]) == ("get_time", {"city": "Madrid"}), call
    assert call["id"] and sum(len(c.tool_call_chunks) for c in chunks) > 1
    assert model.bind_tools([get_time], tool_choice="none").invoke(TEXT).content == ANSWER


class Answer(pydantic.BaseModel):
    """A capital."""

    capital: str = pydantic.Field(max_length=40)


def answers_in_the_form_of_a_class():
    paris = Answer(capital="Paris")
    for strict in (None, True):
        formed = model.with_structured_output(Answer, method="json_schema", strict=strict)
        assert formed.invoke(TEXT_FOR_JSON) == paris
        assert list(formed.stream(TEXT_FOR_JSON))[-1] == paris
    formed = model.with_structured_output(Answer, method="json_mode")
    assert formed.invoke(TEXT_FOR_JSON) == paris
    # The demo model has not learnt this function: what it says in it is its own affair.
    formed = chat_model(max_tokens=200).with_structured_output(Answer, method="function_calling", include_raw=True)
    said = formed.invoke(TEXT)
    assert isinstance(said["parsed"], Answer) and said["parsing_error"] is None, said
    assert said["raw"].tool_calls[0]["name"] == "Answer"
    formed = model.with_structured_output(GET_TIME["function"], method="function_calling")
    assert formed.invoke(TEXT_FOR_TOOL) == {"city": "Madrid"}


def calls_tools_or_answers_in_the_form_of_a_class():
    strict = {**GET_TIME, "function": {**GET_TIME["function"], "strict": True}}
    both = model.bind_tools([strict], response_format=Answer)
    said = both.invoke(TEXT_FOR_JSON)
    assert said.additional_kwargs["parsed"] == Answer(capital="Paris") and not said.tool_calls, said
    called = both.invoke(TEXT_FOR_TOOL)
    # The demo model learnt the tool without the field 'strict'.
    assert called.additional_kwargs.get("parsed") or called.tool_calls[0]["name"] == "get_time", called


def raises_the_errors_that_applications_catch():
    error = raises(openai.AuthenticationError, lambda: chat_model(api_key="sk-wrong").invoke(TEXT))
    assert error.code == "invalid_api_key", error
    error = raises(openai.NotFoundError, lambda: chat_model(model="gpt-9").invoke(TEXT))
    assert error.code == "model_not_found", error
    error = raises(openai.NotFoundError, lambda: list(chat_model(model="gpt-9").stream(TEXT)))
    assert error.code == "model_not_found", error
    raises(ContextOverflowError, lambda: model.invoke(TOO_LONG))


def tells_a_key_that_has_too_much_at_once():
    limited = chat_model(api_key=os.environ["LIMITED_KEY"])
    # The first goes on for as long as it may.
    first = limited.bind(n=4, max_tokens=900, extra_body={"ignore_eos": True}).stream(TEXT)
    next(first)
    error = raises(openai.RateLimitError, lambda: limited.invoke(TEXT))
    assert error.response.headers["retry-after"] == "1", error
    first.close()


run(
    invokes,
    streams_with_the_usage,
    works_asynchronously,
    answers_batches,
    follows_a_conversation,
    runs_a_chain_with_a_prompt_template,
    honours_stop_seed_n_and_logprobs,
    completes_text,
    calls_tools_and_answers_from_what_they_say,
    calls_the_tool_that_it_must_call,
    answers_in_the_form_of_a_class,
    calls_tools_or_answers_in_the_form_of_a_class,
    raises_the_errors_that_applications_catch,
    tells_a_key_that_has_too_much_at_once,
)

"""LangChain with the gateway: a chain that streams, structured output, and an agent's tool calls.

    pip install langchain-openai
    export OPENAI_BASE_URL=https://llm.example.com/v1 OPENAI_API_KEY=sk-flotilla-...
    MODEL=flotilla-demo python chat.py"""

import os

import pydantic
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

# Retries honor the gateway's Retry-After. The gateway is no OpenAI host, so the usage of a stream must be
# asked for. A request waits in the gateway's queue while all nodes are busy: set a timeout that fits.
model = ChatOpenAI(model=os.environ["MODEL"], temperature=0, stream_usage=True, max_retries=5, timeout=600)


def chain():
    prompt = ChatPromptTemplate.from_messages([("human", "What is the capital of {country}?")])
    for piece in (prompt | model | StrOutputParser()).stream({"country": "France"}):
        print(piece, end="", flush=True)
    print()


class Capital(pydantic.BaseModel):
    """The capital of a country."""

    capital: str = pydantic.Field(max_length=40)


def structured_output():
    # json_schema is enforced by a grammar; function_calling works, too.
    formed = model.with_structured_output(Capital, method="json_schema")
    print(formed.invoke("As JSON: What is the capital of France?"))


@tool
def get_time(city: str) -> str:
    """Get the local time of a city"""
    return '{"time": "10:20"}'


def tools():
    messages = [HumanMessage("Time in Madrid?")]
    offered = model.bind_tools([get_time])
    while (message := offered.invoke(messages)).tool_calls:
        messages.append(message)
        messages += [get_time.invoke(call) for call in message.tool_calls]
    print(message.content)


chain()
structured_output()
tools()

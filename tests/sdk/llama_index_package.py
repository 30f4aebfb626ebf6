"""Uses the gateway as retrieval programs do: through `llama-index` and its client for servers that are
like OpenAI's."""

import os

import openai
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from common import ANSWER, MODEL, QUESTION, TEXT, TEXT_FOR_TOOL, raises, run


def language_model(**more):
    settings = dict(model=MODEL, api_base=os.environ["OPENAI_BASE_URL"], temperature=0, max_tokens=100, timeout=60)
    settings |= dict(is_chat_model=True, is_function_calling_model=True, context_window=1024, max_retries=0)
    return OpenAILike(api_key=os.environ["OPENAI_API_KEY"], **settings | more)


model = language_model()
MESSAGES = [ChatMessage(**message) for message in QUESTION]


def chats():
    assert model.chat(MESSAGES).message.content == ANSWER
    assert model.complete(TEXT).text == ANSWER


def streams():
    pieces = [chunk.delta for chunk in model.stream_chat(MESSAGES)]
    assert len(pieces) > 2 and "".join(piece or "" for piece in pieces) == ANSWER, pieces


async def works_asynchronously():
    many = language_model()
    assert (await many.achat(MESSAGES)).message.content == ANSWER
    pieces = [chunk.delta async for chunk in await many.astream_chat(MESSAGES)]
    assert "".join(piece or "" for piece in pieces) == ANSWER, pieces


def get_time(city: str) -> str:
    """Get the local time of a city"""
    return '{"time": "10:20"}'


def calls_tools():
    tool = FunctionTool.from_defaults(get_time)
    response = model.chat_with_tools([tool], user_msg=TEXT_FOR_TOOL, tool_required=True)
    [call] = model.get_tool_calls_from_response(response)
    assert call.tool_name == "get_time" and isinstance(call.tool_kwargs["city"], str), call


def raises_the_errors_that_applications_catch():
    raises(openai.NotFoundError, lambda: language_model(model="gpt-9").chat(MESSAGES))


run(chats, streams, works_asynchronously, calls_tools, raises_the_errors_that_applications_catch)

"""What the scripts for the Python packages share: what they ask the demo model, and how they run.

They find the gateway in OPENAI_BASE_URL and OPENAI_API_KEY. LIMITED_KEY is the key of somebody who
may ask one thing at a time."""

import asyncio
import inspect

MODEL = "flotilla-demo"
TEXT = "What is the capital of France?"
QUESTION = [{"role": "user", "content": TEXT}]
ANSWER = "The capital of France is Paris."
# The demo model answers this with {"capital": "Paris"}.
TEXT_FOR_JSON = "As JSON: What is the capital of France?"
# It calls this function where it is offered, and answers from what it returns.
TEXT_FOR_TOOL = "Time in Madrid?"
GET_TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Get the local time of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# More than its context holds.
TOO_LONG = "word " * 3000


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def run(*tests):
    for test in tests:
        outcome = test()
        if inspect.isawaitable(outcome):
            asyncio.run(outcome)
        print("ok:", test.__name__)

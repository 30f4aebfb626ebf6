"""A client of the gateway with OpenAI's package: streaming, retries, structured output, tools.

    pip install openai
    export OPENAI_BASE_URL=https://llm.example.com/v1 OPENAI_API_KEY=sk-flotilla-...
    MODEL=flotilla-demo python chat.py

For a self-signed certificate, also: export SSL_CERT_FILE=cert.pem"""

import json
import os

import openai
import pydantic

# Names of models: curl -H "Authorization: Bearer $OPENAI_API_KEY" "$OPENAI_BASE_URL/models"
MODEL = os.environ["MODEL"]

# The package repeats a request that gets 429 (a rate limit of your key) or 503 (no node can serve it in
# time). It waits for as long as the response's Retry-After says. The default is 2 retries. A request waits
# in the gateway's queue while all nodes are busy: set a timeout that you would wait yourself.
client = openai.OpenAI(max_retries=5, timeout=600)


def ask(text):
    return dict(model=MODEL, messages=[{"role": "user", "content": text}], temperature=0)


def stream():
    request = ask("What is the capital of France?")
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**request, stream=True, stream_options=options):
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        if chunk.usage:
            print(f" ({chunk.usage.completion_tokens} tokens)")


class Capital(pydantic.BaseModel):
    # A limit keeps a model from filling the response.
    capital: str = pydantic.Field(max_length=40)


def structured_output():
    # The schema becomes a grammar: the response always has this form.
    request = ask("As JSON: What is the capital of France?")
    response = client.chat.completions.parse(**request, response_format=Capital)
    print(response.choices[0].message.parsed)


def get_time(city):
    return {"time": "10:20"}


GET_TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Get the local time of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def tools():
    request = ask("Time in Madrid?") | {"tools": [GET_TIME]}
    while True:
        message = client.chat.completions.create(**request).choices[0].message
        request["messages"].append(message)
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            result = get_time(**json.loads(call.function.arguments))
            answer = {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}
            request["messages"].append(answer)


def errors():
    try:
        client.chat.completions.create(**ask("Hello") | {"model": "no-such-model"})
    except openai.APIStatusError as error:
        # The operator finds the request in the gateway's log by its id.
        print(error.status_code, error.code, error.request_id is not None)


stream()
structured_output()
tools()
errors()

"""LiteLLM's SDK with the gateway: a completion, a stream, and a fallback to a second gateway.

    pip install litellm
    export OPENAI_BASE_URL=https://llm.example.com/v1 OPENAI_API_KEY=sk-flotilla-...
    MODEL=flotilla-demo python chat.py"""

import os

import litellm

# openai/ says that the other side speaks OpenAI's API; the rest is the model's name at the gateway.
FLOTILLA = dict(
    model=f"openai/{os.environ['MODEL']}",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    # Retries honor the gateway's Retry-After. A request waits in its queue while all nodes are busy.
    max_retries=5,
    timeout=600,
)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def complete():
    response = litellm.completion(**FLOTILLA, messages=QUESTION, temperature=0)
    print(response.choices[0].message.content)


def stream():
    for chunk in litellm.completion(**FLOTILLA, messages=QUESTION, temperature=0, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


def fall_back():
    # Deployments of one name, in this order. One gateway already balances its nodes and fails over between
    # them; this is for gateways in several places.
    gateways = ["https://127.0.0.1:9/v1", FLOTILLA["api_base"]]
    deployments = [
        {"model_name": "chat", "litellm_params": FLOTILLA | {"api_base": gateway, "max_retries": 0, "order": order}}
        for order, gateway in enumerate(gateways, start=1)
    ]
    router = litellm.Router(deployments, num_retries=2, retry_after=0)
    print(router.completion("chat", QUESTION, temperature=0).choices[0].message.content)


complete()
stream()
fall_back()

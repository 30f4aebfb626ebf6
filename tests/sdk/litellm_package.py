"""Uses the gateway through `litellm`, the package that makes many providers look like one."""

import json
import os

# Read when the package is imported: it would fetch the prices of all models, and read any .env.
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_MODE="PRODUCTION")

import litellm
import pydantic

from common import ANSWER, GET_TIME, MODEL, QUESTION, TEXT_FOR_JSON, TEXT_FOR_TOOL, TOO_LONG, raises, run

litellm.telemetry = False
litellm.suppress_debug_info = True
PROVIDED = f"openai/{MODEL}"
SETTINGS = dict(model=PROVIDED, api_base=os.environ["OPENAI_BASE_URL"], max_retries=0, num_retries=0, timeout=60)

# It goes on for as long as it may.
LONG = dict(stream=True, n=4, max_tokens=900, extra_body={"ignore_eos": True})


def asked(messages=QUESTION, **more):
    return dict(SETTINGS, messages=messages, temperature=0) | more


def user(text):
    return [{"role": "user", "content": text}]


def completes():
    answer = litellm.completion(**asked())
    assert answer.choices[0].message.content == ANSWER, answer
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def streams_with_the_usage():
    chunks = list(litellm.completion(**asked(stream=True, stream_options={"include_usage": True})))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert len({c.id for c in chunks}) == 1
    whole = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert whole.choices[0].message.content == ANSWER and whole.choices[0].finish_reason == "stop"
    usage = litellm.completion(**asked()).usage
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens)


async def works_asynchronously():
    answer = await litellm.acompletion(**asked())
    assert answer.choices[0].message.content == ANSWER, answer
    stream = await litellm.acompletion(**asked(stream=True))
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER


def completes_text():
    prompt = "<|im_start|>user\nSpell cat.<|im_end|>\n<|im_start|>assistant\n"
    settings = SETTINGS | {"model": f"text-completion-openai/{MODEL}"}
    answer = litellm.text_completion(prompt=prompt, temperature=0, max_tokens=20, **settings)
    assert answer.choices[0].text == "c-a-t", answer


def honours_seed_stop_n_and_max_tokens():
    def sampled():
        return litellm.completion(**asked(temperature=1.5, seed=3, max_tokens=12)).choices[0].message.content

    assert sampled() == sampled()
    assert litellm.completion(**asked(stop=["France"])).choices[0].message.content == "The capital of "
    two = litellm.completion(**asked(n=2, logprobs=True)).choices
    assert [(c.index, c.message.content) for c in two] == [(0, ANSWER), (1, ANSWER)]
    assert "".join(t.token for t in two[1].logprobs.content) == ANSWER
    short = litellm.completion(**asked(max_tokens=1))
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 1


def calls_tools_and_answers_from_what_they_say():
    messages = user(TEXT_FOR_TOOL)
    calling = asked(messages, tools=[GET_TIME], tool_choice="required")
    choice = litellm.completion(**calling).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    [call] = choice.message.tool_calls
    assert call.function.name == "get_time" and json.loads(call.function.arguments) == {"city": "Madrid"}

    whole = litellm.stream_chunk_builder(list(litellm.completion(**calling, stream=True)))
    [streamed] = whole.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments and streamed.id != call.id
    assert whole.choices[0].finish_reason == "tool_calls"

    said = {"role": "tool", "tool_call_id": call.id, "content": '{"time": "10:20"}'}
    answer = litellm.completion(**asked([*messages, choice.message, said], tools=[GET_TIME]))
    assert answer.choices[0].message.content == "It is 10:20 in Madrid.", answer


class Answer(pydantic.BaseModel):
    capital: str


def answers_in_the_form_of_a_class():
    schema = {"name": "answer", "strict": True, "schema": Answer.model_json_schema() | {"additionalProperties": False}}
    for form in (Answer, {"type": "json_schema", "json_schema": schema}, {"type": "json_object"}):
        answer = litellm.completion(**asked(user(TEXT_FOR_JSON), response_format=form))
        assert Answer.model_validate_json(answer.choices[0].message.content).capital == "Paris", answer


def maps_errors_to_its_own():
    def ask(**more):
        return lambda: litellm.completion(**asked(**more))

    error = raises(litellm.AuthenticationError, ask(api_key="sk-wrong"))
    assert error.status_code == 401 and error.llm_provider == "openai", error
    for stream in (False, True):
        error = raises(litellm.NotFoundError, ask(model="openai/gpt-9", stream=stream))
        assert error.status_code == 404 and "gpt-9" in error.message, error
    error = raises(litellm.ContextWindowExceededError, ask(messages=user(TOO_LONG)))
    assert "1024" in error.message, error
    error = raises(litellm.BadRequestError, ask(temperature=9))
    assert "temperature" in error.message, error


def tells_a_key_that_has_too_much_at_once():
    limited = dict(api_key=os.environ["LIMITED_KEY"])
    first = litellm.completion(**asked(**limited, **LONG))
    assert next(first).id
    error = raises(litellm.RateLimitError, lambda: litellm.completion(**asked(**limited)))
    assert error.status_code == 429 and error.litellm_response_headers["retry-after"] == "1", error
    first.completion_stream.close()


def deployment(name, **more):
    return {"model_name": "toy", "litellm_params": SETTINGS | more, "model_info": {"id": name}}


async def routes_between_deployments():
    router = litellm.Router([deployment("a"), deployment("b")], num_retries=0)
    used = set()
    for _ in range(20):
        answer = await router.acompletion("toy", QUESTION, temperature=0)
        assert answer.choices[0].message.content == ANSWER, answer
        used.add(answer._hidden_params["model_id"])
    assert used == {"a", "b"}, used


def leaves_a_deployment_that_refuses():
    deployments = [deployment("refusing", api_key="sk-wrong", order=1), deployment("other", order=2)]
    router = litellm.Router(deployments, num_retries=1, retry_after=0)
    answer = router.completion("toy", QUESTION, temperature=0)
    assert answer.choices[0].message.content == ANSWER, answer
    assert answer._hidden_params["model_id"] == "other"
    assert answer._hidden_params["additional_headers"]["x-litellm-attempted-fallbacks"] == 1


run(
    completes,
    streams_with_the_usage,
    works_asynchronously,
    completes_text,
    honours_seed_stop_n_and_max_tokens,
    calls_tools_and_answers_from_what_they_say,
    answers_in_the_form_of_a_class,
    maps_errors_to_its_own,
    tells_a_key_that_has_too_much_at_once,
    routes_between_deployments,
    leaves_a_deployment_that_refuses,
)

"""Runs message batches through the official `anthropic` package, which finds endpoint and key in
ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY."""

import time

import anthropic

from common import ANSWER, MODEL, QUESTION, raises, run

client = anthropic.Anthropic(max_retries=0, timeout=60)
batches = client.messages.batches
PARAMS = dict(model=MODEL, max_tokens=100, messages=QUESTION)
# One that nobody serves: its requests wait for a node.
ABSENT = PARAMS | dict(model="absent")


def requests(count, params=PARAMS):
    return [{"custom_id": f"request-{number}", "params": params} for number in range(count)]


def ended(batch):
    for _ in range(600):
        if batch.processing_status == "ended":
            return batch
        time.sleep(0.1)
        batch = batches.retrieve(batch.id)
    raise AssertionError(f"it does not end: {batch}")


def counts(batch):
    return {name: count for name, count in batch.request_counts.to_dict().items() if count}


def runs_a_batch_and_reads_its_results():
    wrong = {"custom_id": "wrong", "params": PARAMS | dict(max_tokens=0)}
    batch = batches.create(requests=requests(5) + [wrong])
    assert batch.type == "message_batch" and batch.id.startswith("msgbatch_"), batch
    assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 60 * 60, batch
    batch = ended(batch)
    assert counts(batch) == dict(succeeded=5, errored=1), batch
    assert batch.ended_at >= batch.created_at and batch.cancel_initiated_at is None, batch
    assert batch.results_url.startswith(str(client.base_url)), batch
    results = list(batches.results(batch.id))
    assert [result.custom_id for result in results] == [f"request-{i}" for i in range(5)] + ["wrong"], results
    for done in results[:5]:
        message = done.result.message
        assert done.result.type == "succeeded" and message.role == "assistant", done
        assert message.content[0].text == ANSWER and message.usage.output_tokens > 0, done
    refused = results[5].result
    assert (refused.type, refused.error.type) == ("errored", "error"), refused
    assert refused.error.error.type == "invalid_request_error" and "max_tokens" in refused.error.error.message, refused


def cancels_a_batch():
    batch = batches.create(requests=requests(20, ABSENT))
    raises(anthropic.ConflictError, lambda: batches.delete(batch.id))
    raises(anthropic.AnthropicError, lambda: batches.results(batch.id))
    assert batches.cancel(batch.id).processing_status in ("canceling", "ended")
    batch = ended(batch)
    assert counts(batch) == dict(canceled=20) and batch.cancel_initiated_at, batch
    results = list(batches.results(batch.id))
    assert len(results) == 20 and all(done.result.type == "canceled" for done in results), results
    raises(anthropic.ConflictError, lambda: batches.cancel(batch.id))


def lists_batches_page_by_page():
    made = [ended(batches.create(requests=requests(1))).id for _ in range(3)]
    newest = [batch.id for batch in batches.list(limit=2)]
    assert newest[:3] == made[::-1] and len(newest) == len(set(newest)) == 5, newest
    page = batches.list(limit=1, before_id=made[0])
    assert [batch.id for batch in page.data] == [made[1]] and page.has_more, page
    assert [batch.id for batch in batches.list(limit=1, before_id=made[0])] == made[1:]


def deletes_a_batch():
    batch = ended(batches.create(requests=requests(1)))
    deleted = batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted"), deleted
    raises(anthropic.NotFoundError, lambda: batches.retrieve(batch.id))


def says_what_is_wrong_with_a_batch():
    def error(requests):
        return raises(anthropic.BadRequestError, lambda: batches.create(requests=requests))

    twice = error(requests(1) + requests(1))
    assert twice.type == "invalid_request_error" and "requests.1.custom_id" in twice.message, twice.message
    assert "requests.0.params.stream" in error(requests(1, PARAMS | dict(stream=True))).message
    assert "requests.0.custom_id" in error([dict(custom_id="no spaces", params=PARAMS)]).message
    assert "at least one" in error([]).message
    wrong = anthropic.Anthropic(api_key="sk-wrong", max_retries=0).messages.batches
    raises(anthropic.AuthenticationError, lambda: wrong.list())


async def works_asynchronously_and_in_the_beta():
    async with anthropic.AsyncAnthropic(max_retries=0, timeout=60) as many:
        batch = await many.beta.messages.batches.create(requests=requests(1))
        ended(batch)
        results = [done async for done in await many.beta.messages.batches.results(batch.id)]
        assert results[0].result.message.content[0].text == ANSWER, results


run(
    runs_a_batch_and_reads_its_results,
    cancels_a_batch,
    lists_batches_page_by_page,
    deletes_a_batch,
    says_what_is_wrong_with_a_batch,
    works_asynchronously_and_in_the_beta,
)

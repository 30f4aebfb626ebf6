"""Streams of responses in the background, read on after every break: one line of JSON for each.

Takes how many streams, and how many at a time. With "more" behind them, others follow until the input ends.
Stream n asks what stream n + 20 asks.
"""

import asyncio
import itertools
import json
import sys

from openai import APIConnectionError, AsyncOpenAI, InternalServerError

ENDS = ("response.completed", "response.incomplete", "response.failed")
KINDS = 20

client = AsyncOpenAI(max_retries=10, timeout=300)


def request(number: int) -> dict:
    kind = number % KINDS
    return {
        "model": "flotilla-demo",
        "input": f"Count from 1 to {80 + kind}.",
        "max_output_tokens": 700,
        "temperature": float(kind % 2),
        "extra_body": {"seed": kind},
    }


async def read(number: int) -> dict:
    """All events of a stream, however often it breaks."""
    stream = await client.responses.create(background=True, stream=True, **request(number))
    id, events, breaks = None, [], 0
    while True:
        try:
            async for event in stream:
                id = id or event.response.id
                assert event.sequence_number == len(events), (event, len(events))
                events.append([event.type, getattr(event, "delta", None)])
                if event.type in ENDS:
                    await stream.close()
                    usage = event.response.usage
                    return {
                        "number": number,
                        "id": id,
                        "events": events,
                        "breaks": breaks,
                        "text": event.response.output_text,
                        "usage": [usage.input_tokens, usage.output_tokens],
                    }
        except APIConnectionError:
            pass
        breaks += 1
        while True:
            try:
                if id is None:
                    stream = await client.responses.create(
                        background=True, stream=True, **request(number)
                    )
                else:
                    stream = await client.responses.retrieve(
                        id, stream=True, starting_after=len(events) - 1
                    )
                break
            except (APIConnectionError, InternalServerError):
                await asyncio.sleep(0.2)


async def main(count: int, at_a_time: int, more: bool) -> None:
    end = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read) if more else None
    numbers = itertools.count()

    async def some() -> None:
        for number in numbers:
            if number >= count and (end is None or end.done()):
                break
            print(json.dumps(await read(number)), flush=True)

    await asyncio.gather(*(some() for _ in range(at_a_time)))


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["more"]))

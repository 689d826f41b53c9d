"""Long polls of one work key."""

from __future__ import annotations

import asyncio
import contextlib
import json

from tests.attack.registry import attack
from tests.attack.target import Target

_POLLS, _QUEUE_SETS, _QUEUES = 600, 100, 20


@attack
async def polls_on_many_queue_sets(target: Target) -> None:
    """Hundreds of polls that wait for different queues. No query may be needed for each of them again and again."""
    async with contextlib.AsyncExitStack() as stack:
        connections = []
        for number in range(_POLLS):
            # A connection that sends nothing for a while is closed, so each poll is sent as soon as its connection is open.
            connections.append(await stack.enter_async_context(target.connect()))
            _, writer = connections[-1]
            queues = [f"queue-{number % _QUEUE_SETS}-{index}" for index in range(_QUEUES)]
            body = json.dumps({"worker": "w", "queues": queues, "wait_seconds": 30}).encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            writer.write(target.head("POST", "/v1/worker/claim", "work", headers) + body)
            if number % 20 == 0:  # the subject is the cost of waiting, not that of requests
                await asyncio.sleep(0.005)
        await asyncio.sleep(2)
        assert not any(reader.at_eof() for reader, _ in connections)

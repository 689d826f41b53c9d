"""Connections that are opened and not used."""

from __future__ import annotations

import asyncio
import contextlib

from everbeat.serving import raise_file_limit
from tests.attack.registry import attack
from tests.attack.target import MAX_CONNECTIONS, Target

_HALF = b"GET /v1/tasks HTTP/1.1\r\nHost: localhost\r\nX-Half:"


@attack
async def half_sent_heads(target: Target) -> None:
    """More connections than the server accepts, none of which finishes its head."""
    raise_file_limit(MAX_CONNECTIONS + 100)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(MAX_CONNECTIONS + 100):
            _, writer = await stack.enter_async_context(target.connect())
            writer.write(_HALF)
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert await target.health_seconds() < 2

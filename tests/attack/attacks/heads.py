"""Targets and headers of requests."""

from __future__ import annotations

import asyncio

from tests.attack.registry import attack
from tests.attack.target import Target

_CONNECTIONS = 32


async def _refused(target: Target, head: bytes, *statuses: int) -> None:
    """Send a head on many connections at the same time. Every response has one of these statuses."""

    async def send() -> None:
        async with target.connect() as (reader, writer):
            writer.write(head)
            async with asyncio.timeout(10):
                status = int((await reader.readline()).split()[1])
        assert status in statuses, status

    await asyncio.gather(*(send() for _ in range(_CONNECTIONS)))


@attack
async def targets_of_key_prefixes(target: Target) -> None:
    """A search for keys in the URL, before the request is authenticated."""
    await _refused(target, target.head("GET", "/v1/tasks?a=" + "eb_" * 20_000), 414, 431)
    await _refused(target, target.head("GET", "/v1/tasks?a=" + "eb_" * 2_700), 401, 429)
    await _refused(target, target.head("GET", "/v1/tasks?a=" + "eb_A" * 2_000), 401, 429)


@attack
async def large_heads(target: Target) -> None:
    await _refused(target, target.head("GET", "/healthz", headers={"X-Large": "a" * 100_000}), 431)
    await _refused(target, target.head("GET", "/healthz", headers={f"X-{number}": "a" * 900 for number in range(99)}), 431)
    await _refused(target, target.head("GET", "/healthz", headers={f"X-{number}": "a" for number in range(101)}), 431)

"""Large bodies are checked by other processes, one at a time, and by turns for the keys."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from everbeat.api.body_checks import BodyChecks
from everbeat.api.json_checker import OutlineRequest
from everbeat.core.json_text import BadJson

REQUEST = OutlineRequest("tasks", "payload", 100, 4, 64)
BODY = b'{"tasks":[{"payload":[1,2,3]},{}]}'
SPANS = [10, 29, 21, 28, 0, 30, 32, 0, 0, 0]


@pytest.fixture
async def checks() -> AsyncIterator[BodyChecks]:
    found = BodyChecks()
    yield found
    found.close()


async def test_the_process_returns_the_outline_or_what_is_wrong(checks: BodyChecks) -> None:
    assert list((await checks.outline(BODY, REQUEST, "key")).spans) == SPANS
    with pytest.raises(BadJson, match='the key "a" more than once'):
        await checks.outline(b'{"a":1,"a":2}', REQUEST, "key")
    process = checks._medium._process._process
    assert process is not None
    process.kill()
    assert len(await checks.outline(BODY, REQUEST, "key")) == 2, "the process is started again"


async def test_the_process_ends_when_it_has_been_idle() -> None:
    checks = BodyChecks(idle_seconds=0.01)
    await checks.outline(BODY, REQUEST, "key")
    process = checks._medium._process._process
    assert process is not None
    async with asyncio.timeout(10):
        while process.poll() is None:
            await asyncio.sleep(0.01)
    assert len(await checks.outline(BODY, REQUEST, "key")) == 2
    checks.close()


async def test_keys_are_served_in_rotation_and_a_cancelled_request_is_left_out(checks: BodyChecks) -> None:
    order: list[str] = []

    async def check(key: str) -> None:
        await checks.outline(BODY, REQUEST, key)
        order.append(key)

    waiting = [asyncio.create_task(check(key)) for key in ("x", "x", "x", "gone", "y")]
    await asyncio.sleep(0)
    waiting[3].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["x", "x", "y", "x"]


async def test_bodies_are_checked_in_a_thread_if_no_process_can_be_started(
    checks: BodyChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert list((await checks.outline(BODY, REQUEST, "key")).spans) == SPANS
    assert checks._medium._process._process is None

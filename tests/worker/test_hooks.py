"""Hooks around handlers: in order, sync or async, and of influence only where they are asked to have some."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import LogCapture

from everbeat.worker.context import Context
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, registry_of


@pytest.mark.parametrize("is_async", [True, False])
async def test_they_run_in_order_around_the_handler(workers: Workers, server: FakeServer, is_async: bool) -> None:
    message: list[str] = []

    async def job() -> str:
        message.append("handler")
        return "result"

    def sync_job() -> str:
        message.append("handler")
        return "result"

    async def before_async(ctx: Context) -> None:
        message.append(f"before {ctx.type}")

    async def after_async(ctx: Context, result: Any) -> None:
        message.append(f"after {result}")

    registry = registry_of(job if is_async else sync_job)
    registry.before += [lambda ctx: message.append("first"), before_async]
    registry.after += [after_async, lambda ctx, result: message.append("last")]
    server.submit()
    await workers.start(registry=registry)
    await workers.until_ended()
    assert message == ["first", "before job", "handler", "after result", "last"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_on_error_sees_what_was_raised(workers: Workers, server: FakeServer, is_async: bool) -> None:
    message: list[str] = []

    async def job() -> None:
        raise ValueError("no")

    def sync_job() -> None:
        raise ValueError("no")

    async def on_error(ctx: Context, error: BaseException) -> None:
        message.append(repr(error))

    registry = registry_of(job if is_async else sync_job)
    registry.after.append(lambda ctx, result: message.append("after"))
    registry.on_error.append(on_error)
    task = server.submit()
    await workers.start(registry=registry)
    await workers.until_ended()
    assert message == ["ValueError('no')"]
    assert task.state == "failed"


async def test_an_error_in_before_fails_the_attempt(workers: Workers, server: FakeServer) -> None:
    called: list[str] = []

    async def job() -> None:
        called.append("handler")

    def refuse(ctx: Context) -> None:
        raise PermissionError("not now")

    registry = registry_of(job)
    registry.before.append(refuse)
    registry.on_error.append(lambda ctx, error: called.append(type(error).__name__))
    task = server.submit()
    await workers.start(registry=registry)
    await workers.until_ended()
    assert called == ["PermissionError"]
    assert task.error is not None
    assert task.error.kind == "PermissionError"


@pytest.mark.parametrize("is_async", [True, False])
async def test_errors_in_after_and_on_error_change_nothing(
    workers: Workers, server: FakeServer, is_async: bool, lines: LogCapture
) -> None:
    async def job(bad: bool) -> str:
        return sync_job(bad)

    def sync_job(bad: bool) -> str:
        if bad:
            raise ValueError("handler")
        return "fine"

    async def broken_async(ctx: Context, value: Any) -> None:
        raise RuntimeError("hook")

    def broken(ctx: Context, value: Any) -> None:
        raise RuntimeError("hook")

    registry = registry_of(job if is_async else sync_job)
    registry.after += [broken, broken_async]
    registry.on_error += [broken_async, broken]
    good, bad = server.submit(payload={"bad": False}), server.submit(payload={"bad": True})
    await workers.start(registry=registry)
    await workers.until_ended()
    assert good.result == "fine"
    assert bad.error is not None
    assert bad.error.message == "handler"
    assert [line["event"] for line in lines.entries].count("hook_failed") == 4


async def test_on_error_is_told_of_timeouts(workers: Workers, server: FakeServer) -> None:
    import asyncio

    message: list[str] = []

    async def job() -> None:
        await asyncio.sleep(60)

    registry = registry_of(job)
    registry.on_error.append(lambda ctx, error: message.append(type(error).__name__))
    task = server.submit(timeout_seconds=0.03)
    await workers.start(registry=registry)
    await workers.until_ended()
    assert message == ["TimeoutError"]
    assert task.error is not None
    assert task.error.kind == "timeout"

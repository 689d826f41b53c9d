"""Hooks around handlers: in order, sync or async; only `before` hooks affect the outcome."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import LogCapture

from everbeat.worker.context import Context
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, registry_of


@pytest.mark.parametrize("is_async", [True, False])
async def test_they_run_in_order_around_the_handler(workers: Workers, server: FakeServer, is_async: bool) -> None:
    calls: list[str] = []

    async def job() -> str:
        calls.append("handler")
        return "result"

    def sync_job() -> str:
        calls.append("handler")
        return "result"

    async def before_async(ctx: Context) -> None:
        calls.append(f"before {ctx.type}")

    async def after_async(ctx: Context, result: Any) -> None:
        calls.append(f"after {result}")

    registry = registry_of(job if is_async else sync_job)
    registry.before += [lambda ctx: calls.append("first"), before_async]
    registry.after += [after_async, lambda ctx, result: calls.append("last")]
    server.submit()
    await workers.start(registry=registry)
    await workers.until_ended()
    assert calls == ["first", "before job", "handler", "after result", "last"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_on_error_gets_the_raised_error(workers: Workers, server: FakeServer, is_async: bool) -> None:
    calls: list[str] = []

    async def job() -> None:
        raise ValueError("no")

    def sync_job() -> None:
        raise ValueError("no")

    async def on_error(ctx: Context, error: BaseException) -> None:
        calls.append(repr(error))

    registry = registry_of(job if is_async else sync_job)
    registry.after.append(lambda ctx, result: calls.append("after"))
    registry.on_error.append(on_error)
    task = server.submit()
    await workers.start(registry=registry)
    await workers.until_ended()
    assert calls == ["ValueError('no')"]
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
async def test_errors_in_after_and_on_error_have_no_effect(
    workers: Workers, server: FakeServer, is_async: bool, logs: LogCapture
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
    assert [entry["event"] for entry in logs.entries].count("hook_failed") == 4


async def test_on_error_is_called_for_timeouts(workers: Workers, server: FakeServer) -> None:
    import asyncio

    calls: list[str] = []

    async def job() -> None:
        await asyncio.sleep(60)

    registry = registry_of(job)
    registry.on_error.append(lambda ctx, error: calls.append(type(error).__name__))
    task = server.submit(timeout_seconds=0.03)
    await workers.start(registry=registry)
    await workers.until_ended()
    assert calls == ["TimeoutError"]
    assert task.error is not None
    assert task.error.kind == "timeout"

"""The app that the benchmarks run: handlers that only record their start time. `everbeat worker bench.noop:eb`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from bench.records import VARIABLE, Writer
from everbeat import Context, Everbeat
from everbeat.client.tasks import Task

QUEUE = "bench"

eb = Everbeat(name="bench")
_writer = Writer(os.environ.get(VARIABLE, os.devnull))


@eb.task(queue=QUEUE)
async def noop(id: int, t: float, kind: str, pad: str) -> None:
    _writer.write(t)


@eb.task(queue=QUEUE)
def noop_sync(id: int, t: float, kind: str, pad: str) -> None:
    _writer.write(t)


@eb.task(queue=QUEUE)
async def nap(id: int, t: float, kind: str, pad: str) -> None:
    """Wait without using CPU time, as most tasks do."""
    _writer.write(t)
    await asyncio.sleep(0.01 + 0.08 * (id % 97) / 97)


@eb.task(queue=QUEUE)
async def tick(ctx: Context, id: int, t: float, kind: str, pad: str) -> None:
    """Record a tag that identifies the tick and the schedule: ticks are whole seconds, and schedules fewer than 10,000."""
    assert ctx.scheduled_for is not None
    _writer.write(ctx.scheduled_for.timestamp() + id / 10_000)


def producer(url: str, *, api_key: str | None = None) -> tuple[Everbeat, Task[..., ..., Any, Any]]:
    """Return an app that only submits to the URL, and its noop task."""
    app = Everbeat(url, name="bench", api_key=api_key)
    return app, app.task(queue=QUEUE, name="noop")(_not_run)


async def _not_run(id: int, t: float, kind: str, pad: str) -> None:
    raise AssertionError("the worker's noop should run, not the producer's")

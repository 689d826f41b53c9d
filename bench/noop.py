"""The app that the workers of the benchmarks run: handlers that only note when they began. `everbeat worker bench.noop:eb`."""

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
    _writer.note(t)


@eb.task(queue=QUEUE)
def noop_sync(id: int, t: float, kind: str, pad: str) -> None:
    _writer.note(t)


@eb.task(queue=QUEUE)
async def nap(id: int, t: float, kind: str, pad: str) -> None:
    """Takes its time and no processor, as most tasks do."""
    _writer.note(t)
    await asyncio.sleep(0.01 + 0.08 * (id % 97) / 97)


@eb.task(queue=QUEUE)
async def tick(ctx: Context, id: int, t: float, kind: str, pad: str) -> None:
    """The tag says which tick of which schedule: ticks are on whole seconds, and there are fewer than 10,000 schedules."""
    assert ctx.scheduled_for is not None
    _writer.note(ctx.scheduled_for.timestamp() + id / 10_000)


def producer(url: str, *, api_key: str | None = None) -> tuple[Everbeat, Task[..., ..., Any]]:
    """An app of its own on that URL, and its noop, for those who only submit."""
    app = Everbeat(url, name="bench", api_key=api_key)
    return app, app.task(queue=QUEUE, name="noop")(_elsewhere)


async def _elsewhere(id: int, t: float, kind: str, pad: str) -> None:
    raise AssertionError("the worker's noop should run, not the producer's")

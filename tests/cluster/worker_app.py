"""An app whose handlers crash, hang, block or return invalid values on request. Cluster tests run it in worker processes.

Handlers record events in a file that all processes append to, with the monotonic clock that they share.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from everbeat import Context, Everbeat

eb = Everbeat(name="faults")


def note(event: str, ctx: Context) -> None:
    line = {"event": event, "task": str(ctx.task_id), "attempt": ctx.attempt, "fence": ctx.fence, "pid": os.getpid()}
    tick = None if ctx.scheduled_for is None else ctx.scheduled_for.timestamp()
    text = json.dumps({**line, "worker": ctx.worker, "schedule": ctx.schedule, "tick": tick, "at": time.monotonic()}) + "\n"
    # A single write of less than a page to a file opened for appending: lines of several processes are not interleaved.
    file = os.open(os.environ["EVERBEAT_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@eb.task
def effect(ctx: Context) -> str:
    note("effect", ctx)
    return "done"


@eb.task
def die(ctx: Context, before: int = 0, after: int = 0) -> str:
    """Kill the worker before or after the effect, in the given attempt."""
    note("start", ctx)
    if ctx.attempt == before:
        _die()
    note("effect", ctx)
    if ctx.attempt == after:
        _die()
    return "done"


@eb.task
def poison(ctx: Context) -> None:
    note("start", ctx)
    _die()


@eb.task
def ignore_cancel(ctx: Context, end_file: str) -> str:
    """Ignore cancellation, and return when the file exists."""
    note("start", ctx)
    while not Path(end_file).exists():
        time.sleep(0.01)
    note("effect", ctx)
    return f"by {ctx.worker}"


@eb.task
async def slow(ctx: Context, seconds: float) -> str:
    note("start", ctx)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cancelled", ctx)
        raise
    note("end", ctx)
    return f"by {ctx.worker}"


@eb.task
async def busy(ctx: Context, seconds: float) -> str:
    """Record an effect every few milliseconds until cancelled; only in the first attempt."""
    until = time.monotonic() + (seconds if ctx.attempt == 1 else 0)
    try:
        while time.monotonic() < until:
            note("effect", ctx)
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note("cancelled", ctx)
        raise
    return "done"


@eb.task
def busy_in_thread(ctx: Context, seconds: float) -> str:
    until = time.monotonic() + (seconds if ctx.attempt == 1 else 0)
    while time.monotonic() < until:
        if ctx.cancelled:
            note("cancelled", ctx)
            ctx.raise_if_cancelled()
        note("effect", ctx)
        time.sleep(0.02)
    return "done"


@eb.task
async def block(ctx: Context, seconds: float) -> str:
    """Block the event loop."""
    note("start", ctx)
    time.sleep(seconds)
    note("end", ctx)
    return "done"


@eb.task
async def short(ctx: Context, seconds: float = 0.0) -> int:
    await asyncio.sleep(random.uniform(0, seconds))
    return ctx.fence


@eb.task
def fails(ctx: Context) -> None:
    note("effect", ctx)
    raise ValueError("failed on request")


@eb.task
def big(ctx: Context, megabytes: int, fail: bool = False) -> str:
    text = "x" * (megabytes * 1024 * 1024)
    if fail:
        raise ValueError(text)
    return text


@eb.task
def invalid(ctx: Context, what: str) -> Any:
    deep: Any = None
    for _ in range({"deep": 500, "deeper": 100_000}.get(what, 0)):
        deep = [deep]
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return {
        "object": object(),
        "cycle": cyclic,
        "surrogate": "\ud800",
        "nul": "a\0b",
        "keys": {(1, 2): 3},
        "infinite": float("inf"),
        "huge": 10**400,
        "bytes": b"\xff\xfe",
    }.get(what, deep)

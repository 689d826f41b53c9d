"""The app of the workers of a chaos run: `everbeat worker tests.chaos.worker_app:eb`. Its handler logs what it does."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from everbeat import Context, Everbeat
from tests.chaos.records import log_of_process

eb = Everbeat(name="chaos")
_log = log_of_process(Path(os.environ["CHAOS_WORKER_LOGS"]), os.environ["CHAOS_WORKER_NAME"])


@eb.task
async def work(
    ctx: Context, seconds: float = 0.0, ticket: str | None = None, fail_attempts: int = 0, die_attempts: int = 0
) -> dict[str, Any]:
    dies, fails = ctx.attempt <= die_attempts, ctx.attempt <= fail_attempts
    tick = None if ctx.scheduled_for is None else ctx.scheduled_for.timestamp()
    claim = {"task": str(ctx.task_id), "fence": ctx.fence, "attempt": ctx.attempt, "worker": ctx.worker}
    _log.write("started", **claim, schedule=ctx.schedule, tick=tick, ticket=ticket, planned=dies or fails)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(seconds)
    if fails:
        _log.write("failed", **claim)
        raise ValueError("failed on request")
    _log.write("done", **claim)
    return {"fence": ctx.fence}

"""A web app that embeds Everbeat: it submits tasks, runs them and fires a schedule, without another process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from fastapi import FastAPI, HTTPException

from everbeat import Context, Everbeat, ServerProblem

eb = Everbeat(os.environ.get("EVERBEAT_URL", "sqlite:///shop.db"), name="shop")


@eb.task(queue="mail", max_attempts=5, timeout="1m")
async def send_receipt(ctx: Context, order: int) -> str:
    ctx.log(f"order {order}, attempt {ctx.attempt}")
    return f"receipt of order {order} sent"


@eb.cron("* * * * * *", catch_up="none")
async def clean_up(ctx: Context) -> str:
    """Runs once per second, regardless of the number of processes."""
    return f"cleaned up at {ctx.scheduled_for}"


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with eb.running():
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order}/receipt", status_code=202)
async def request_receipt(order: int) -> dict[str, str]:
    """A repeated request for the same order returns the same task."""
    handle = await send_receipt.options(key=f"receipt-{order}").submit_async(order=order)
    return {"task": str(handle.id)}


@app.get("/tasks/{task_id}")
async def show_task(task_id: UUID) -> dict[str, Any]:
    try:
        task = await eb.async_client.tasks.get(task_id)
    except ServerProblem as problem:
        raise HTTPException(problem.status, str(problem)) from None
    shown = msgspec.to_builtins(task)
    return {name: shown[name] for name in ("id", "type", "state", "attempt", "progress", "result", "error")}


@app.get("/ticks")
async def show_ticks() -> list[dict[str, Any]]:
    """The ledger of the schedule for the last ten seconds."""
    now = datetime.now(UTC)
    ticks = await eb.async_client.schedules.ticks("clean_up", from_=now - timedelta(seconds=10), to=now)
    return [msgspec.to_builtins(tick) for tick in ticks]

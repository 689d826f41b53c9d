"""The page of a schedule, its actions, and the explanation of its ticks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from statistics import median
from typing import Any
from urllib.parse import quote

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.describe import describe
from everbeat.core.responses import schedule_response
from everbeat.core.schedules import Schedule
from everbeat.core.tasks import TaskRecord
from everbeat.store.values import TaskFilter
from everbeat.web.formats import ran_for
from everbeat.web.forms import Form, read_form
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.pages.strips import entries_strip, runs_sparkline
from everbeat.web.rendering import local_path, page, redirect

_ENTRIES = 48
_EXECUTIONS = 50
# The last run is compared with at least this many others.
_COMPARED = 5


def schedule_link(schedule: Schedule) -> str:
    return f"/schedules/{quote(schedule.spec.name)}"


@get("/schedules/{ref}", READ)
async def show_schedule(request: ApiRequest) -> Response:
    context = request.context
    schedule = await context.schedules.get(request.tenant_id, request.path_params["ref"])
    now = await context.store.clock()
    recent = await context.store.tick_recent(
        request.tenant_id, [schedule.id], from_=now - timedelta(days=62), limit=_ENTRIES // 2
    )
    start = min((row.scheduled_for for row in recent), default=now - timedelta(hours=1))
    entries = await context.ledger.entries(schedule, from_=start, to=now + timedelta(days=366), after=None, limit=_ENTRIES)
    executions = await context.tasks.page(
        request.tenant_id, TaskFilter(schedule_id=schedule.id), before=None, limit=_EXECUTIONS
    )
    gaps = [one for one in entries if one.outcome == "missing"]
    return await page(
        request,
        "schedule.html",
        schedule=schedule,
        definition=schedule_response(schedule),
        text=describe(schedule.spec.rule, schedule.id),
        zone=schedule.spec.rule.timezone,
        strip=entries_strip(schedule, entries),
        entries=list(reversed(entries)),
        executions=executions.tasks,
        gaps=gaps,
        gap_end=gaps[-1].scheduled_for + timedelta(microseconds=1) if gaps else None,
        pauses=[one for one in await context.pauses.active(request.tenant_id) if one.queue in (None, schedule.spec.queue)],
        **_durations(executions.tasks),
        now=now,
        link=schedule_link(schedule),
    )


def _durations(tasks: Sequence[TaskRecord]) -> dict[str, Any]:
    """The chart of the last runs, and whether the last one was slower than usual: twice the median of the others."""
    ended = [task for task in reversed(tasks) if task.started_at is not None and task.finished_at is not None]
    seconds = [ran_for(task, task.created_at) or 0.0 for task in ended]
    usual = median(seconds[:-1]) if len(seconds) > _COMPARED else None
    return {
        "durations": runs_sparkline(ended, seconds, height=60) if seconds else None,
        "median": median(seconds) if seconds else None,
        "slowest": max(seconds, default=None),
        "last_duration": seconds[-1] if seconds else None,
        "is_slow": usual is not None and seconds[-1] > max(2 * usual, usual + 1),
    }


@get("/schedules/{ref}/why", READ)
async def show_why(request: ApiRequest) -> Response:
    context, query = request.context, query_of(request)
    schedule = await context.schedules.get(request.tenant_id, request.path_params["ref"])
    at = paging.parse_instant("at", query["at"]) if "at" in query else None
    found = await context.explainer.explain(request.tenant_id, str(schedule.id), at)
    return await page(
        request, "why.html", schedule=schedule, found=found, facts=found.facts, link=schedule_link(schedule), at=query.get("at")
    )


@post("/schedules/{ref}/pause", MANAGE)
async def pause(request: ApiRequest) -> Response:
    form = await read_form(request)
    note = form.text("note") or None
    schedule = await request.context.schedules.pause(
        request.tenant_id, request.path_params["ref"], note=note, by=request.caller
    )
    return redirect(_back(form, schedule), f"{schedule.spec.name} is paused. Its ticks are recorded as skipped.")


@post("/schedules/{ref}/resume", MANAGE)
async def resume(request: ApiRequest) -> Response:
    form = await read_form(request)
    schedule = await request.context.schedules.resume(request.tenant_id, request.path_params["ref"], by=request.caller)
    return redirect(_back(form, schedule), f"{schedule.spec.name} is active again.")


@post("/schedules/{ref}/delete", MANAGE)
async def delete(request: ApiRequest) -> Response:
    await read_form(request)
    ref = request.path_params["ref"]
    await request.context.schedules.delete(request.tenant_id, ref, by=request.caller)
    return redirect("/schedules", f"{ref} was deleted. Its ledger is kept.")


def _back(form: Form, schedule: Schedule) -> str:
    """Return the page that the form was on: the list, or the schedule."""
    return local_path(form.text("back")) if form.is_set("back") else schedule_link(schedule)


ROUTES = [show_schedule, show_why, pause, resume, delete]

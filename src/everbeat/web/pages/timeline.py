"""The timeline: the newest runs as a Gantt chart, one row for each schedule or type, to see overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from markupsafe import Markup

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.tasks import TaskRecord
from everbeat.web.formats import duration
from everbeat.web.inputs import task_filter
from everbeat.web.pages.declarations import READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, rendered
from everbeat.web.svg import GanttBar, gantt

_WINDOWS = {
    "5min": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
}
_MAX_RUNS = 300
_MAX_ROWS = 60
_MARKS = 6


@get("/timeline", READ)
async def show_timeline(request: ApiRequest) -> Response:
    query = query_of(request)
    name = query["window"] if query.get("window") in _WINDOWS else "1h"
    context = request.context
    found = await context.tasks.page(request.tenant_id, await task_filter(request, query), before=None, limit=_MAX_RUNS)
    now = await context.store.clock()
    begin = now - _WINDOWS[name]
    chart, count = await rendered(partial(_chart, found.tasks, begin, now))
    return await page(
        request,
        "timeline.html",
        chart=chart,
        count=count,
        is_cut=found.next_before is not None and bool(found.tasks) and found.tasks[-1].created_at > begin,
        windows=list(_WINDOWS),
        window=name,
        filters=query,
        max_runs=_MAX_RUNS,
    )


def _chart(tasks: Sequence[TaskRecord], begin: datetime, now: datetime) -> tuple[Markup | None, int]:
    """The chart of the runs since `begin`, and how many it shows."""
    bars = [_bar(task, begin, now) for task in tasks if task.started_at is not None and _ends(task, now) >= begin]
    rows = set(list(dict.fromkeys(bar.row for bar in bars))[:_MAX_ROWS])
    shown = sorted((bar for bar in bars if bar.row in rows), key=lambda bar: (bar.row, bar.begin))
    marks = [(index / _MARKS, f"{begin + (now - begin) * index / _MARKS:%H:%M}") for index in range(1, _MARKS)]
    return gantt(shown, marks, "Runs by schedule and time") if shown else None, len(shown)


def _ends(task: TaskRecord, now: datetime) -> datetime:
    return task.finished_at or now


def _bar(task: TaskRecord, begin: datetime, now: datetime) -> GanttBar:
    assert task.started_at is not None
    window, name = now - begin, task.schedule or task.type
    ran = (_ends(task, now) - task.started_at).total_seconds()
    label = f"{name} {task.state.value}, began {task.started_at:%H:%M:%S} UTC, {duration(ran)}"
    first, last = (task.started_at - begin) / window, (_ends(task, now) - begin) / window
    return GanttBar(name, max(0.0, first), min(1.0, max(first, last)), task.state.value, label, f"/tasks/{task.id}")


ROUTES = [show_timeline]

"""Tick strips: the last ticks of schedules as rows of cells, each a link to the explanation of its tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple
from urllib.parse import quote
from uuid import UUID

from markupsafe import Markup

from everbeat.core.schedules import Schedule
from everbeat.core.tasks import TaskRecord, TaskState
from everbeat.core.ticks import Outcome, Tick
from everbeat.services.ledger import LedgerEntry
from everbeat.store.base import Store
from everbeat.store.values import FinishedRun
from everbeat.web.formats import iso, local_time
from everbeat.web.rendering import rendered
from everbeat.web.svg import StripCell, sparkline, tick_strip

_CELLS = 24
_RUNS = 20
_BARS = {TaskState.COMPLETED: "ok", TaskState.DEAD: "bad", TaskState.FAILED: "bad", TaskState.RUNNING: "running"}
_WINDOW = timedelta(days=62)


class RecentCharts(NamedTuple):
    """The tick strips of schedules, and the sparklines of the runs of the same ticks."""

    strips: dict[UUID, Markup]
    sparklines: dict[UUID, Markup]


async def recent_charts(store: Store, schedules: Sequence[Schedule], now: datetime) -> RecentCharts:
    """The charts of a page of schedules, with two queries."""
    if not schedules:
        return RecentCharts({}, {})
    tenant_id, ids = schedules[0].tenant_id, [schedule.id for schedule in schedules]
    rows: dict[UUID, list[Tick]] = {id_: [] for id_ in ids}
    for row in await store.tick_recent(tenant_id, ids, from_=now - _WINDOW, limit=_CELLS):
        rows[row.schedule_id].append(row)
    runs: dict[UUID, list[FinishedRun]] = {id_: [] for id_ in ids}
    task_ids = [row.task_id for each in rows.values() for row in each[-_RUNS:] if row.task_id is not None]
    for run in await store.task_runs(tenant_id, task_ids):
        runs[run.schedule_id].append(run)
    return await rendered(partial(_charts, schedules, rows, runs))


def _charts(
    schedules: Sequence[Schedule], rows: Mapping[UUID, Sequence[Tick]], runs: Mapping[UUID, Sequence[FinishedRun]]
) -> RecentCharts:
    return RecentCharts(
        {one.id: _strip(one, [_cell(one, row) for row in rows[one.id]]) for one in schedules},
        {id_: _sparkline([_seconds(run) for run in found], [run.state for run in found]) for id_, found in runs.items()},
    )


def _seconds(run: FinishedRun) -> float | None:
    return None if run.started_at is None else (run.finished_at - run.started_at).total_seconds()


def entries_strip(schedule: Schedule, entries: Sequence[LedgerEntry]) -> Markup:
    """The strip of ledger entries, which include missing and upcoming ticks."""
    cells = [
        _strip_cell(schedule, one.scheduled_for, one.outcome, None if one.reason is None else one.reason.value, one.count)
        for one in entries
    ]
    return _strip(schedule, cells)


def runs_sparkline(tasks: Sequence[TaskRecord], seconds: Sequence[float], *, height: int = 20) -> Markup:
    return _sparkline(list(seconds), [task.state for task in tasks], height=height)


def _sparkline(seconds: Sequence[float | None], states: Sequence[TaskState], *, height: int = 20) -> Markup:
    if not states:
        return Markup('<span class="muted">no runs yet</span>')
    failed = sum(state in (TaskState.DEAD, TaskState.FAILED) for state in states)
    label = f"Durations of the last {len(states)} runs, {failed} failed"
    return sparkline(seconds, [_BARS.get(state, "none") for state in states], label, height=height)


def why_link(schedule: Schedule, at: datetime) -> str:
    return f"/schedules/{quote(schedule.spec.name)}/why?at={quote(iso(at))}"


def _cell(schedule: Schedule, row: Tick) -> StripCell:
    outcome = "fired" if row.outcome is Outcome.FIRED else "skipped"
    return _strip_cell(schedule, row.scheduled_for, outcome, None if row.reason is None else row.reason.value, row.count)


def _strip_cell(schedule: Schedule, at: datetime, outcome: str, reason: str | None, count: int) -> StripCell:
    text = outcome if reason is None else f"{outcome}: {reason}"
    times = "" if count == 1 else f", {count} ticks"
    return StripCell(outcome, f"{local_time(at, schedule.spec.rule.timezone)} {text}{times}", why_link(schedule, at))


def _strip(schedule: Schedule, cells: Sequence[StripCell]) -> Markup:
    return tick_strip(cells, f"Ticks of {schedule.spec.name}") if cells else Markup('<span class="muted">no ticks yet</span>')

"""The rows of a submit, prepared before its transaction.

SQLite has one writer, and a firing waits for the write in progress. So a large batch is inserted by a few statements that read
its rows from JSON. With one execution per row, the writer would return to Python after each row and wait for the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from everbeat.core.tasks import NewTask
from everbeat.store.rows import text_of
from everbeat.store.sqlite.blocks import Block
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.sqlite.conversions import to_microseconds
from everbeat.store.task_changes import SLICE

# Fewer rows are inserted one by one, which costs less.
MIN_ROWS = 50
_MIN_EQUAL = 20
_OWN_FIELDS = frozenset({"id", "partition", "payload", "payload_ref", "key"})
_common_fields = itemgetter(*(index for index, field in enumerate(NewTask._fields) if field not in _OWN_FIELDS))


class Insert(NamedTuple):
    """One statement and its rows as JSON. `example`: one of the tasks, if all are equal in what the rows do not contain."""

    rows: str
    example: NewTask | None


async def prepare_inserts(tasks: Sequence[NewTask]) -> list[Insert]:
    """Prepare the statements of a batch, in steps that let other work run on the event loop."""
    found: list[Insert] = []
    for start in range(0, len(tasks), SLICE):
        if start:
            await asyncio.sleep(0)
        found += inserts_of(tasks[start : start + SLICE])
    return found


def inserts_of(tasks: Sequence[NewTask]) -> list[Insert]:
    """The statements that insert these tasks, none of which has a lease."""
    found: list[Insert] = []
    different: list[NewTask] = []
    for _, group in groupby(tasks, _common_fields):
        equal = list(group)
        if len(equal) < _MIN_EQUAL:
            different += equal
        else:
            rows = [(task.id.hex, task.partition, task.payload.decode(), task.payload_ref) for task in equal]
            found.append(Insert(text_of(rows), equal[0]))
    if different:
        found.append(Insert(text_of([_different_row(task) for task in different]), None))
    return found


def _different_row(task: NewTask) -> tuple[Any, ...]:
    return (
        task.id.hex,
        task.tenant_id.hex,
        task.partition,
        task.queue,
        task.type,
        task.target,
        task.payload.decode(),
        task.payload_ref,
        task.origin,
        None if task.schedule_id is None else task.schedule_id.hex,
        None if task.scheduled_for is None else to_microseconds(task.scheduled_for),
        task.priority,
        task.max_attempts,
        task.retry,
        task.timeout_seconds,
        task.labels,
        task.fair_key,
        task.hooks,
        task.schedule_name,
        None if task.run_at is None else to_microseconds(task.run_at),
        None if task.delay_seconds is None else round(task.delay_seconds * 1_000_000),
        task.traceparent,
    )


def run_inserts(session: SqliteSession, blocks: Mapping[str, Block], inserts: Sequence[Insert], now: int) -> None:
    for insert in inserts:
        if insert.example is None:
            session.change(blocks["task_submit_different"], {"rows": insert.rows, "now": now})
        else:
            session.change(blocks["task_submit_equal"], {**_common_values(insert.example, now), "rows": insert.rows})


def run_time(task: NewTask, now: int) -> int:
    if task.run_at is not None:
        return to_microseconds(task.run_at)
    return now if task.delay_seconds is None else now + round(task.delay_seconds * 1_000_000)


def _common_values(task: NewTask, now: int) -> dict[str, Any]:
    run_at = run_time(task, now)
    return {
        "tenant_id": task.tenant_id,
        "queue": task.queue,
        "type": task.type,
        "target": task.target,
        "origin": task.origin.value,
        "schedule_id": task.schedule_id,
        "scheduled_for": task.scheduled_for,
        "priority": task.priority,
        "max_attempts": task.max_attempts,
        "retry": task.retry,
        "timeout_seconds": task.timeout_seconds,
        "labels": task.labels,
        "fair_key": task.fair_key,
        "hooks": task.hooks,
        "schedule_name": task.schedule_name,
        "run_at": run_at,
        "state": "scheduled" if run_at > now else "ready",
        "traceparent": task.traceparent,
        "created_at": now,
    }

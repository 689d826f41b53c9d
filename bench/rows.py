"""Schedule rows as Everbeat writes them, generated without the API from a template."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.core.definitions import parse_definition
from everbeat.core.partitioning import partition_of
from everbeat.core.schedules import DEFAULT_TENANT, Schedule, Status, anchored
from everbeat.store.rows import schedule_to_row

Row = dict[str, Any]

PAYLOAD = {"report": "nightly", "customer": "c-0123456789", "options": {"format": "pdf", "pages": 12, "notify": True}}
TARGET = {"kind": "worker", "queue": "reports", "type": "report"}


def template(definition: dict[str, Any], now: datetime) -> Row:
    """Return the row of this definition, registered at `now`."""
    spec = parse_definition({"name": "template", "target": TARGET, "payload": PAYLOAD, **definition})
    spec = msgspec.structs.replace(spec, rule=anchored(spec.rule, None, now))
    return schedule_to_row(
        Schedule(
            id=UUID(int=0),
            tenant_id=DEFAULT_TENANT,
            partition=0,
            spec=spec,
            status=Status.ACTIVE,
            revision=1,
            cursor_at=now,
            rule_at=now,
            created_at=now,
            updated_at=now,
            next_tick_at=now,
            due_at=now,
        )
    )


def burst_rows(count: int, now: datetime, at: datetime, instants: int, interval: timedelta) -> Iterator[Row]:
    """Yield hourly schedules whose next ticks are at the instant `at`, or spread over several instants starting with it."""
    base = template({"every_seconds": 3600, "overlap": "allow"}, now)
    for number in range(count):
        tick = at + (number * 7919 % instants) * interval
        id_ = uuid_utils.compat.uuid7()
        yield {
            **base,
            "id": id_,
            "name": f"burst-{number:06d}",
            "partition": partition_of(id_),
            "anchor": tick - timedelta(hours=1),
            "next_tick_at": tick,
            "due_at": tick,
        }

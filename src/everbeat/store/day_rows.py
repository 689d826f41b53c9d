"""Converts rows of the roll-up of the ledger, and computes how replaced rows change the sums of the tenants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from everbeat.core.ledger_days import REASON_COLUMNS, DayCounts, LedgerDay
from everbeat.store.rows import Row

_COUNTS = ("expected", "fired", "missing", "doubled")
_COLUMNS = (*_COUNTS, *REASON_COLUMNS.values())


def day_to_row(day: LedgerDay) -> dict[str, Any]:
    names = ("day", "schedule_id", "tenant_id", *_COUNTS, "lag_seconds", "first_at", "last_at", "cursor_at")
    skipped = {column: day.skipped.get(reason) or None for reason, column in REASON_COLUMNS.items()}
    return {**{name: getattr(day, name) for name in names}, **skipped}


def day_from_row(row: Row) -> LedgerDay:
    names = ("day", "schedule_id", "tenant_id", *_COUNTS, "lag_seconds", "first_at", "last_at", "cursor_at")
    return LedgerDay(**{name: row[name] for name in names}, skipped=_skipped(row))


def counts_from_row(row: Row) -> DayCounts:
    return DayCounts(**{name: row[name] for name in (*_COUNTS, "lag_seconds")}, skipped=_skipped(row))


def _skipped(row: Row) -> dict[str, int]:
    return {reason: row[column] for reason, column in REASON_COLUMNS.items() if row[column]}


def differences(new: Sequence[LedgerDay], replaced: Sequence[LedgerDay]) -> list[dict[str, Any]]:
    """Return what to add to the sums of each tenant and day."""
    sums: dict[tuple[UUID, datetime], dict[str, Any]] = {}
    for sign, days in ((1, new), (-1, replaced)):
        for one in days:
            row = day_to_row(one)
            start = {"tenant_id": one.tenant_id, "day": one.day, "lag_seconds": 0.0, **dict.fromkeys(_COLUMNS, 0)}
            total = sums.setdefault((one.tenant_id, one.day), start)
            for column in _COLUMNS:
                total[column] += sign * (row[column] or 0)
            total["lag_seconds"] = max(total["lag_seconds"], one.lag_seconds)
    return list(sums.values())

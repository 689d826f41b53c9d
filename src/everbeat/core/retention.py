"""Retention: how long the rows of each table are kept, the tables that are kept by month, and the sizes of deletion steps."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self

# The tables that are kept by month, with the column of their time.
MONTH_TABLES: Mapping[str, str] = {
    "ticks": "scheduled_for",
    "task_history": "finished_at",
    "attempts": "ended_at",
    "task_log": "at",
}
LEDGER_TABLES = ("ticks",)
HISTORY_TABLES = ("task_history", "attempts", "task_log")

_SMALLEST_STEP = 50
_MAX_STEP_SECONDS = 0.05


class RetentionPeriods(NamedTuple):
    """How long rows are kept. `dead_letters`: None if they are kept until somebody removes them."""

    ledger: timedelta
    history: timedelta
    audit_log: timedelta
    dead_letters: timedelta | None = None

    @classmethod
    def of_days(
        cls,
        days: float,
        *,
        ledger: float | None = None,
        history: float | None = None,
        audit_log: float = 400.0,
        dead_letters: float | None = None,
    ) -> Self:
        """`days` is the default of the ledger and the history."""
        return cls(
            timedelta(days=days if ledger is None else ledger),
            timedelta(days=days if history is None else history),
            timedelta(days=audit_log),
            None if dead_letters is None else timedelta(days=dead_letters),
        )

    def month_cutoffs(self, now: datetime) -> dict[tuple[str, ...], datetime]:
        """The tables that are kept by month, with the time before which their rows are removed."""
        return {LEDGER_TABLES: now - self.ledger, HISTORY_TABLES: now - self.history}

    def of_tenant(self, days: float | None) -> TenantPeriods | None:
        """The periods of a tenant with a retention of its own. None if it is not shorter than that of the cluster."""
        if days is None:
            return None
        own = timedelta(days=days)
        if own >= self.ledger and own >= self.history:
            return None
        return TenantPeriods(min(own, self.ledger), min(own, self.history))


class TenantPeriods(NamedTuple):
    """How long the ledger and the history of one tenant are kept."""

    ledger: timedelta
    history: timedelta

    def before(self, table: str, now: datetime) -> datetime:
        """The time before which rows of the table are removed."""
        return now - (self.ledger if table in LEDGER_TABLES else self.history)


def next_step_size(size: int, seconds: float, largest: int) -> int:
    """The number of rows to delete in the next step, so that one step takes about a twentieth of a second.

    A file of SQLite has one writer: while it deletes, nothing else is written.
    """
    if seconds > _MAX_STEP_SECONDS:
        return max(_SMALLEST_STEP, size // 2)
    if seconds < _MAX_STEP_SECONDS / 4:
        return min(largest, size * 2)
    return size


def month_name(at: datetime) -> str:
    """The name of a month, such as `2026-07`."""
    return f"{at:%Y-%m}"


def month_bounds(name: str) -> tuple[datetime, datetime]:
    """The first instant of a month, and that of the next one."""
    year, month = int(name[:4]), int(name[5:])
    return datetime(year, month, 1, tzinfo=UTC), datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)

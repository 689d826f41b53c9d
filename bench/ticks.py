"""The cost of computing one tick, for typical rules: pure Python, no database."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bench.report import ResultRow, median
from bench.rows import TARGET
from everbeat.core.definitions import parse_definition
from everbeat.core.timeline import compile_rule

_START = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
_RULES: dict[str, dict[str, Any]] = {
    "every 90 seconds": {"every_seconds": 90, "anchor": "2026-01-01T00:00:00Z"},
    "*/5 * * * * UTC": {"cron": "*/5 * * * *"},
    "30 2 * * * New York": {"cron": "30 2 * * *", "timezone": "America/New_York"},
    "0 9 * * MON-FRI Berlin": {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"},
    "rrule monthly last Friday": {
        "rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=18;BYMINUTE=0;BYSECOND=0",
        "anchor": "2026-01-01T00:00:00Z",
    },
}


def run(*, quick: bool) -> list[ResultRow]:
    count = 500 if quick else 3000
    return [
        ResultRow("Computation (no store)", f"next tick of {name}", "", median([_round(rule, count) for _ in range(5)]), "µs")
        for name, rule in _RULES.items()
    ]


def _round(rule: dict[str, Any], count: int) -> float:
    spec = parse_definition({"name": "tick", "target": TARGET, **rule})
    timeline = compile_rule(spec.rule, UUID(int=1), {})
    at: datetime | None = _START
    started = time.perf_counter()
    for _ in range(count):
        assert at is not None
        at = timeline.next_tick(at)
    return (time.perf_counter() - started) / count * 1e6

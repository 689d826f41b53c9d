"""Registering schedules by POST /v1/schedules/batch, compared with a plain insert of the resulting rows."""

from __future__ import annotations

import time
from typing import Any

from bench.client import batch_request, send_all
from bench.databases import BATCH, BenchDatabase, Scale, serving
from bench.report import ResultRow, at_least, median, print_progress, rounds
from bench.rows import PAYLOAD, TARGET

_TARGET_RATE = 5000
_ZONES = (
    *("UTC", "Europe/Berlin", "Europe/London", "Europe/Madrid", "America/New_York", "America/Chicago", "America/Sao_Paulo"),
    *("America/Los_Angeles", "Asia/Tokyo", "Asia/Kolkata", "Asia/Singapore", "Australia/Sydney", "Africa/Johannesburg"),
)


def definitions(count: int) -> list[dict[str, Any]]:
    """Return definitions: mostly different cron expressions in a dozen zones, some shared ones, and one in ten an interval."""
    schedules = []
    for number in range(count):
        minute, hour, zone = number % 60, number // 60 % 24, _ZONES[number % len(_ZONES)]
        triggers: list[dict[str, Any]] = [
            {"cron": f"{minute} {hour} * * *", "timezone": zone},
            {"cron": f"{minute} {hour} * * MON-FRI", "timezone": zone},
            {"cron": f"{minute} {hour} {1 + number % 28} * *", "timezone": zone},
            {"cron": f"*/{5 + number % 25} * * * *", "timezone": zone},
            {"every_seconds": 600 + number % 3000},
        ]
        kind = (0, 0, 0, 0, 1, 1, 2, 3, 3, 4)[number // 7 % 10]
        schedules.append({"name": f"report-{number:07d}", "target": TARGET, "payload": PAYLOAD, **triggers[kind]})
    return schedules


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    count, times = 10_000 if scale.is_quick else 50_000, scale.rounds
    schedules = definitions(count)
    lines = []
    for clients in (1, 4):
        raw, registered = [], []
        for number in range(times):
            registered.append(await _everbeat(database, schedules, clients))
            rows = await database.rows()
            await database.recreate()
            await database.checkpoint()
            raw.append(count / await database.raw_register(rows, clients))
            print_progress(
                f"{database.name}: registering {number + 1}, clients {clients}: {registered[-1]:,.0f}/s, raw {raw[-1]:,.0f}/s"
            )
        what = f"registering {count:,} schedules, {clients} client{'s' if clients > 1 else ''}"
        detail = f"{rounds(registered)}; raw {rounds(raw)}"
        lines.append(at_least(database.name, what, median(registered), "/s", _TARGET_RATE, median(raw), detail))
    return lines


async def _everbeat(database: BenchDatabase, schedules: list[dict[str, Any]], clients: int) -> float:
    await database.recreate()
    await database.checkpoint()
    with serving(database) as (_, port):
        requests = [batch_request(port, schedules[start : start + BATCH]) for start in range(0, len(schedules), BATCH)]
        started = time.perf_counter()
        await send_all(port, requests, clients)
        return len(schedules) / (time.perf_counter() - started)

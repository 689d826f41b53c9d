"""The schedules of a run: every policy, several zones, and a known first and last instant."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

QUEUE, POISON_QUEUE, HELD_QUEUE = "chaos", "chaos-poison", "chaos-held"
_ZONES = ("Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca")
_RETRY = {"kind": "fixed", "base_seconds": 0.5, "jitter": False}


def make_rules(from_: float, to: float, receiver: str) -> list[dict[str, Any]]:
    """Return the schedules as they are registered. The window begins and ends between two seconds: no tick is on its edge."""
    rules: list[dict[str, Any]] = []
    for number in range(6):
        rules.append(_rule(f"all-{number}", "* * * * * *", catch_up="all"))
        rules.append(_rule(f"latest-{number}", "*/2 * * * * *", catch_up="latest"))
        rules.append(_rule(f"none-{number}", "*/3 * * * * *", catch_up="none"))
        anchor = datetime.fromtimestamp(math.floor(from_) - 3600 + 0.1 + number / 4, UTC).isoformat()
        rules.append({**_rule(f"every-{number}", ""), "every_seconds": 2.5, "anchor": anchor, "catch_up": "all"})
        del rules[-1]["cron"]
    rules += [_rule(f"skip-{number}", "* * * * * *", overlap="skip", payload={"seconds": 1.3}) for number in range(3)]
    rules += [
        _rule(f"held-{number}", "*/3 * * * * *", overlap="queue", payload={"seconds": 0.3}, queue=HELD_QUEUE)
        for number in range(2)
    ]
    rules += [_rule(f"zone-{number}", f"{number},30-33 * 0-23 * * *", timezone=zone) for number, zone in enumerate(_ZONES)]
    rules += [_rule(f"burst-{number:02d}", "*/30 * * * * *") for number in range(40)]
    rules += [_rule(f"paused-{number}", "* * * * * *") for number in range(2)]
    rules += [_rule(f"hook-{number}", "*/2 * * * * *", receiver=receiver) for number in range(5)]
    window = {"starts_at": _text(from_), "ends_at": _text(to)}
    return [{**rule, **window} for rule in rules]


def _rule(
    name: str,
    cron: str,
    *,
    catch_up: str = "latest",
    overlap: str = "allow",
    timezone: str = "UTC",
    payload: dict[str, Any] | None = None,
    queue: str = QUEUE,
    receiver: str | None = None,
) -> dict[str, Any]:
    target: dict[str, Any] = {"kind": "worker", "queue": queue, "type": "work"}
    if receiver is not None:
        target = {"kind": "http", "url": receiver}
    return {
        "name": name,
        "cron": cron,
        "timezone": timezone,
        "target": target,
        "payload": payload or {},
        "catch_up": catch_up,
        "overlap": overlap,
        "max_attempts": 100,
        "retry": _RETRY,
    }


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()

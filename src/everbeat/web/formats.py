"""How the pages write times, durations, numbers and states. Every function is a pure filter for templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from everbeat.core.tasks import TaskRecord
from everbeat.core.zones import load_zone

_SECTIONS = frozenset(
    {"checks", "queues", "workers", "cluster", "audit", "audit-log", "schedules", "tasks", "calendars", "dead-letters"}
)
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def utc_time(at: datetime | str | None) -> str:
    found = as_time(at)
    return "—" if found is None else f"{found.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def local_time(at: datetime | str | None, zone: str) -> str:
    found = as_time(at)
    return "—" if found is None else f"{found.astimezone(load_zone(zone)):%Y-%m-%d %H:%M:%S %Z}"


def local_input(at: datetime, zone: str) -> str:
    """A time as a date and time field of a browser shows it."""
    return f"{at.astimezone(load_zone(zone)):%Y-%m-%dT%H:%M:%S}"


def iso(at: datetime | str | None) -> str:
    found = as_time(at)
    return "" if found is None else found.astimezone(UTC).isoformat().replace("+00:00", "Z")


def as_time(at: datetime | str | None) -> datetime | None:
    if not isinstance(at, str):
        return at
    return datetime.fromisoformat(at)


def duration(seconds: float | None) -> str:
    """A duration with at most two units, such as `1 h 5 min` or `340 ms`."""
    if seconds is None:
        return "—"
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), []
    for size, unit in _UNITS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
        if len(parts) == 2:
            break
    return " ".join(parts)


def relative(at: datetime | str | None, now: datetime) -> str:
    """A time relative to now, such as `in 5 min` or `2 h 3 min ago`."""
    found = as_time(at)
    if found is None:
        return "—"
    seconds = (found - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    text = duration(float(round(abs(seconds)))) if abs(seconds) >= 10 else f"{abs(seconds):.0f} s"
    return f"in {text}" if seconds > 0 else f"{text} ago"


def number(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def count(value: int, singular: str, plural: str | None = None) -> str:
    return f"{number(value)} {singular if value == 1 else plural or singular + 's'}"


def body_text(body: bytes) -> str:
    """The body of a ping as text. Control characters are shown as pictures, because a page must not contain them."""
    return "".join(
        chr(0x2400 + ord(one)) if ord(one) < 32 and one not in "\n\t\r" else one for one in body.decode("utf-8", "replace")
    )


def json_text(value: Any) -> str:
    """A JSON value, or encoded JSON, indented for reading."""
    if isinstance(value, msgspec.Raw | bytes):
        return msgspec.json.format(bytes(value), indent=2).decode("utf-8", "replace")
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8", "replace")


def with_query(query: str, **changed: Any) -> str:
    """The query string with some parameters changed, or removed if they are None, and without the cursor."""
    pairs = {name: value for name, value in parse_qsl(query) if name != "cursor"}
    for name, value in changed.items():
        pairs.pop(name, None)
        if value not in (None, ""):
            pairs[name] = str(value)
    return "?" + urlencode(pairs) if pairs else "?"


def json_line(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


def page_link(link: str | None) -> str | None:
    """The page that shows what a path of the API returns, or None if there is none."""
    if link is None or not link.startswith("/v1/"):
        return None
    section, *rest = link.removeprefix("/v1/").partition("?")[0].split("/")
    if section in ("tasks", "schedules", "checks", "calendars", "operations") and rest:
        return f"/{section}/{rest[0]}"
    return {"pauses": "/queues", "nodes": "/cluster"}.get(section) or (f"/{section}" if section in _SECTIONS else None)


def budget(left: float) -> str:
    """What is left of an error budget, as a fraction. Beyond its end, how often it was used up is easier to read."""
    return f"{left * 100:.1f} %" if left >= 0 else f"0 % (used {1 - left:.1f} times)"


def limit(value: float | None) -> str:
    return "no limit" if value is None else number(value)


def ran_for(task: TaskRecord, now: datetime) -> float | None:
    """The seconds that a task ran, or has been running until now."""
    if task.started_at is None:
        return None
    return max(0.0, ((task.finished_at or now) - task.started_at).total_seconds())


def filters_of(query: str) -> str:
    """The parameters of a list without its cursor, to add them to another address."""
    text = with_query(query)[1:]
    return f"&{text}" if text else ""


FILTERS: Mapping[str, Callable[..., Any]] = {
    "utc_time": utc_time,
    "local_time": local_time,
    "iso": iso,
    "local_input": local_input,
    "duration": duration,
    "relative": relative,
    "number": number,
    "count": count,
    "json_text": json_text,
    "body_text": body_text,
    "with_query": with_query,
    "json_line": json_line,
    "budget": budget,
    "limit": limit,
    "page_link": page_link,
    "ran_for": ran_for,
    "filters_of": filters_of,
}

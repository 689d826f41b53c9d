"""The ticks of a schedule by day: a month as a calendar with counts, and the ledger of a day."""

from __future__ import annotations

from calendar import Calendar
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.errors import InvalidInput
from everbeat.core.zones import load_zone
from everbeat.services.audit import AuditCount
from everbeat.web.inputs import optional_moment
from everbeat.web.pages.declarations import READ
from everbeat.web.pages.queries import query_of
from everbeat.web.pages.schedule import schedule_link
from everbeat.web.pages.strips import why_link
from everbeat.web.rendering import page

_PAGE_SIZE = 100
_YEARS = range(1971, 9998)


class _Day(NamedTuple):
    """A day in the zone of the schedule. `is_past`: the schedule existed on it, and it has begun."""

    date: date
    begin: datetime
    end: datetime
    is_past: bool


@get("/schedules/{ref}/calendar", READ)
async def show_calendar(request: ApiRequest) -> Response:
    """A month of ticks. Each day is audited, so the calendar is loaded after the page of the schedule."""
    context = request.context
    schedule = await context.schedules.get(request.tenant_id, request.path_params["ref"])
    now, zone = await context.store.clock(), schedule.spec.rule.timezone
    today = now.astimezone(load_zone(zone)).date()
    first = _first_day(query_of(request).get("month"), today)
    weeks = [[_day(one, zone, schedule.created_at, now) for one in week] for week in _weeks(first)]
    # The newest days first: with many ticks, the time limit may end the count.
    counted = [day for week in reversed(weeks) for day in reversed(week) if day.is_past and day.date.month == first.month]
    found = await context.audit.by_window(schedule, [(day.begin, day.end) for day in counted])
    counts: dict[date, AuditCount | None] = {day.date: one for day, one in zip(counted, found, strict=True)}
    return await page(
        request,
        "parts/schedule_calendar.html",
        schedule=schedule,
        link=schedule_link(schedule),
        zone=zone,
        first=first,
        today=today,
        weeks=weeks,
        counts=counts,
        is_complete=None not in found,
        previous=(first - timedelta(days=1)).strftime("%Y-%m"),
        following=(first + timedelta(days=31)).strftime("%Y-%m"),
    )


def _first_day(text: str | None, today: date) -> date:
    if text is None:
        return today.replace(day=1)
    try:
        found = date.fromisoformat(f"{text}-01")
    except ValueError:
        raise InvalidInput.of("month", "must be a month such as 2026-01") from None
    if found.year not in _YEARS:
        raise InvalidInput.of("month", f"must be in the years {_YEARS[0]} to {_YEARS[-1]}")
    return found


def _weeks(first: date) -> list[list[date]]:
    return Calendar().monthdatescalendar(first.year, first.month)


def _day(day: date, zone: str, created_at: datetime, now: datetime) -> _Day:
    begin, end = (
        datetime(one.year, one.month, one.day, tzinfo=load_zone(zone)).astimezone(UTC) for one in (day, day + timedelta(days=1))
    )
    return _Day(day, begin, end, created_at < end and begin <= now)


@get("/schedules/{ref}/ticks", READ)
async def show_ticks(request: ApiRequest) -> Response:
    context, query = request.context, query_of(request)
    schedule = await context.schedules.get(request.tenant_id, request.path_params["ref"])
    zone = schedule.spec.rule.timezone
    from_, to = optional_moment(query, "from", zone), optional_moment(query, "to", zone)
    after = paging.time_after(query["cursor"]) if "cursor" in query else None
    found = await context.ledger.entries(schedule, from_=from_, to=to, after=after, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    return await page(
        request,
        "schedule_ticks.html",
        schedule=schedule,
        link=schedule_link(schedule),
        zone=zone,
        from_=from_,
        to=to,
        entries=[(one, why_link(schedule, one.scheduled_for)) for one in shown],
        next_cursor=None if last is None else paging.time_cursor(last.until or last.scheduled_for),
    )


ROUTES = [show_calendar, show_ticks]

"""The ledger as users read it: recorded, upcoming, missing and resting ticks in one order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from everbeat.core.calendars import Calendar, parse_calendar
from everbeat.core.errors import InvalidInput
from everbeat.core.schedules import DEFAULT_TENANT, Schedule
from everbeat.services.ledger import LedgerEntry, LedgerService
from everbeat.store.base import Store
from tests.factories import NOW, SteppedNode, execute_raw, minutes, seconds


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def lines(node: SteppedNode, schedule: Schedule, **more: Any) -> list[LedgerEntry]:
    window = {"from_": NOW, "to": NOW + minutes(6), "after": None, "limit": 100, **more}
    current = await node.schedules.get(DEFAULT_TENANT, str(schedule.id))
    return await LedgerService(node.store, node.timelines, late_seconds=5).entries(current, **window, now=node.now)


def short(found: list[LedgerEntry]) -> list[tuple[float, str, int]]:
    return [((line.scheduled_for - NOW) / minutes(1), line.reason or line.outcome, line.count) for line in found]


async def test_recorded_ticks_come_first_and_the_upcoming_after_them(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(2) + seconds(1), by_seconds=40)
    found = await lines(node, job)
    assert short(found) == [(1, "fired", 1), (2, "fired", 1), (3, "upcoming", 1), (4, "upcoming", 1), (5, "upcoming", 1)]
    assert found[0].task_id is not None
    assert found[0].lag_ms is not None
    assert found[0].lag_ms >= 0
    assert found[2].lag_ms is None


async def test_a_skipped_range_is_one_line(node: SteppedNode) -> None:
    job = await node.put()
    await node.step(NOW + minutes(4) + seconds(10))
    found = await lines(node, job)
    assert short(found) == [(1, "misfire", 3), (4, "fired", 1), (5, "upcoming", 1)]
    assert (found[0].until, found[0].fired_at) == (NOW + minutes(3), None)


async def test_a_tick_that_should_be_there_and_is_not_is_missing(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(3), by_seconds=60)
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", NOW + minutes(2))
    assert short(await lines(node, job))[:4] == [(1, "fired", 1), (2, "missing", 1), (3, "fired", 1), (4, "upcoming", 1)]


async def test_an_overdue_tick_is_missing_only_after_a_while(node: SteppedNode) -> None:
    job = await node.put()
    node.move_to(NOW + minutes(1) + seconds(4))
    assert short(await lines(node, job))[:2] == [(1, "upcoming", 1), (2, "upcoming", 1)]
    node.move_to(NOW + minutes(1) + seconds(6))
    assert short(await lines(node, job))[:2] == [(1, "missing", 1), (2, "upcoming", 1)]


async def test_a_tick_that_waits_for_its_jitter_is_upcoming(node: SteppedNode) -> None:
    job = await node.put(jitter_seconds=3000)
    assert job.due_at is not None
    assert job.due_at > NOW + minutes(1) + seconds(10)
    node.move_to(NOW + minutes(1) + seconds(10))
    assert short(await lines(node, job))[0] == (1, "upcoming", 1)


async def test_a_pause_shows_as_it_goes_on_and_promises_nothing(node: SteppedNode) -> None:
    job = await node.put()
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=NOW + minutes(1))
    node.move_to(NOW + minutes(3))
    assert short(await lines(node, job)) == [(1, "paused", 1), (2, "paused", 1), (3, "paused", 1)]
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    assert short(await lines(node, job)) == [(1, "paused", 1), (2, "paused", 2), (4, "upcoming", 1), (5, "upcoming", 1)]


async def test_an_edit_shows_the_old_rules_rows_and_the_new_rules_future(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(2), by_seconds=60)
    await node.put(cron="*/5 * * * *", overlap="allow")
    assert short(await lines(node, job)) == [(1, "fired", 1), (2, "fired", 1), (5, "upcoming", 1)]


async def test_a_finished_schedule_has_no_future(node: SteppedNode) -> None:
    job = await node.put(ends_at=(NOW + minutes(1)).isoformat())
    await node.step(NOW + minutes(1))
    assert short(await lines(node, job)) == [(1, "fired", 1)]


async def test_a_calendar_shows_what_it_will_leave_out(node: SteppedNode) -> None:
    await node.store.calendar_write(DEFAULT_TENANT, _closed(), now=NOW)
    job = await node.put(calendars={"exclude": ["closed"]})
    assert short(await lines(node, job, to=NOW + minutes(4))) == [(1, "calendar", 1), (2, "calendar", 1), (3, "upcoming", 1)]


def _closed() -> Calendar:
    return parse_calendar("closed", {"intervals": [{"from": "2026-03-02T12:00:00Z", "to": "2026-03-02T12:03:00Z"}]})


async def test_a_faulty_schedule_still_shows_what_is_recorded(node: SteppedNode) -> None:
    job = await node.put()
    await node.step(NOW + minutes(1))
    await execute_raw(node.store, "UPDATE schedules SET timezone = 'Mars/Olympus'")
    assert short(await lines(node, job)) == [(1, "fired", 1)]


async def test_by_default_it_shows_a_day_back_and_a_day_ahead(node: SteppedNode) -> None:
    job = await node.put(cron="0 */6 * * *")
    found = await lines(node, job, from_=None, to=None)
    hours = [(line.scheduled_for - NOW) / timedelta(hours=1) for line in found]
    assert hours == [6, 12, 18]


async def test_a_window_that_ends_before_it_begins_is_refused(node: SteppedNode) -> None:
    job = await node.put()
    with pytest.raises(InvalidInput, match="later than from"):
        await lines(node, job, from_=NOW, to=NOW)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_put_together_are_the_whole(node: SteppedNode, limit: int) -> None:
    job = await node.put(overlap="allow")
    await node.step(NOW + minutes(10) + seconds(10))  # nine skipped as one range, one fired
    await node.run(NOW + minutes(13), by_seconds=30)
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", NOW + minutes(12))
    whole = await lines(node, job, to=NOW + minutes(16))
    expected = [
        (1, "misfire", 9),
        (10, "fired", 1),
        (11, "fired", 1),
        (12, "missing", 1),
        (13, "fired", 1),
        (14, "upcoming", 1),
    ]
    assert short(whole)[:6] == expected
    pages: list[LedgerEntry] = []
    while page := await lines(node, job, to=NOW + minutes(16), limit=limit, after=pages[-1].scheduled_for if pages else None):
        assert len(page) <= limit
        pages += page
    assert pages == whole


async def test_a_window_that_begins_inside_a_range_shows_the_range(node: SteppedNode) -> None:
    job = await node.put()
    await node.step(NOW + minutes(10) + seconds(10))
    found = await lines(node, job, from_=NOW + minutes(5), to=NOW + minutes(12))
    assert short(found) == [(1, "misfire", 9), (10, "fired", 1), (11, "upcoming", 1)]

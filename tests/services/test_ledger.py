"""The ledger as users read it: recorded, upcoming, missing and paused ticks in one order."""

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


async def entries_of(node: SteppedNode, schedule: Schedule, **more: Any) -> list[LedgerEntry]:
    window = {"from_": NOW, "to": NOW + minutes(6), "after": None, "limit": 100, **more}
    current = await node.schedules.get(DEFAULT_TENANT, str(schedule.id))
    return await LedgerService(node.store, node.timelines, late_seconds=5).entries(current, **window, now=node.now)


def summary(found: list[LedgerEntry]) -> list[tuple[float, str, int]]:
    return [((entry.scheduled_for - NOW) / minutes(1), entry.reason or entry.outcome, entry.count) for entry in found]


async def test_recorded_ticks_come_before_upcoming_ones(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(2) + seconds(1), by_seconds=40)
    found = await entries_of(node, job)
    assert summary(found) == [(1, "fired", 1), (2, "fired", 1), (3, "upcoming", 1), (4, "upcoming", 1), (5, "upcoming", 1)]
    assert found[0].task_id is not None
    assert found[0].lag_ms is not None
    assert found[0].lag_ms >= 0
    assert found[2].lag_ms is None


async def test_a_skipped_range_is_one_entry(node: SteppedNode) -> None:
    job = await node.put()
    await node.step(NOW + minutes(4) + seconds(10))
    found = await entries_of(node, job)
    assert summary(found) == [(1, "misfire", 3), (4, "fired", 1), (5, "upcoming", 1)]
    assert (found[0].until, found[0].fired_at) == (NOW + minutes(3), None)


async def test_an_expected_tick_without_a_row_is_missing(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(3), by_seconds=60)
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", NOW + minutes(2))
    assert summary(await entries_of(node, job))[:4] == [(1, "fired", 1), (2, "missing", 1), (3, "fired", 1), (4, "upcoming", 1)]


async def test_an_overdue_tick_is_missing_only_after_late_seconds(node: SteppedNode) -> None:
    job = await node.put()
    node.move_to(NOW + minutes(1) + seconds(4))
    assert summary(await entries_of(node, job))[:2] == [(1, "upcoming", 1), (2, "upcoming", 1)]
    node.move_to(NOW + minutes(1) + seconds(6))
    assert summary(await entries_of(node, job))[:2] == [(1, "missing", 1), (2, "upcoming", 1)]


async def test_a_tick_that_waits_for_its_jitter_is_upcoming(node: SteppedNode) -> None:
    job = await node.put(jitter_seconds=3000)
    assert job.due_at is not None
    assert job.due_at > NOW + minutes(1) + seconds(10)
    node.move_to(NOW + minutes(1) + seconds(10))
    assert summary(await entries_of(node, job))[0] == (1, "upcoming", 1)


async def test_a_pause_has_entries_up_to_now_and_no_upcoming_ticks(node: SteppedNode) -> None:
    job = await node.put()
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=NOW + minutes(1))
    node.move_to(NOW + minutes(3))
    assert summary(await entries_of(node, job)) == [(1, "paused", 1), (2, "paused", 1), (3, "paused", 1)]
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    assert summary(await entries_of(node, job)) == [(1, "paused", 1), (2, "paused", 2), (4, "upcoming", 1), (5, "upcoming", 1)]


async def test_after_an_edit_past_ticks_follow_the_old_rule_and_upcoming_ones_the_new(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(2), by_seconds=60)
    await node.put(cron="*/5 * * * *", overlap="allow")
    assert summary(await entries_of(node, job)) == [(1, "fired", 1), (2, "fired", 1), (5, "upcoming", 1)]


async def test_a_finished_schedule_has_no_upcoming_ticks(node: SteppedNode) -> None:
    job = await node.put(ends_at=(NOW + minutes(1)).isoformat())
    await node.step(NOW + minutes(1))
    assert summary(await entries_of(node, job)) == [(1, "fired", 1)]


async def test_upcoming_ticks_that_a_calendar_excludes_are_listed(node: SteppedNode) -> None:
    await node.store.calendar_write(DEFAULT_TENANT, _closed_calendar(), now=NOW)
    job = await node.put(calendars={"exclude": ["closed"]})
    assert summary(await entries_of(node, job, to=NOW + minutes(4))) == [
        (1, "calendar", 1),
        (2, "calendar", 1),
        (3, "upcoming", 1),
    ]


def _closed_calendar() -> Calendar:
    return parse_calendar("closed", {"intervals": [{"from": "2026-03-02T12:00:00Z", "to": "2026-03-02T12:03:00Z"}]})


async def test_recorded_ticks_of_a_faulty_schedule_are_listed(node: SteppedNode) -> None:
    job = await node.put()
    await node.step(NOW + minutes(1))
    await execute_raw(node.store, "UPDATE schedules SET timezone = 'Mars/Olympus'")
    assert summary(await entries_of(node, job)) == [(1, "fired", 1)]


async def test_the_default_window_is_one_day_back_and_one_day_ahead(node: SteppedNode) -> None:
    job = await node.put(cron="0 */6 * * *")
    found = await entries_of(node, job, from_=None, to=None)
    hours = [(entry.scheduled_for - NOW) / timedelta(hours=1) for entry in found]
    assert hours == [6, 12, 18]


async def test_a_window_that_ends_before_it_begins_is_refused(node: SteppedNode) -> None:
    job = await node.put()
    with pytest.raises(InvalidInput, match="later than from"):
        await entries_of(node, job, from_=NOW, to=NOW)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_together_contain_every_entry_once(node: SteppedNode, limit: int) -> None:
    job = await node.put(overlap="allow")
    await node.step(NOW + minutes(10) + seconds(10))  # nine are skipped as one range, one fires
    await node.run(NOW + minutes(13), by_seconds=30)
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", NOW + minutes(12))
    all_entries = await entries_of(node, job, to=NOW + minutes(16))
    expected = [
        (1, "misfire", 9),
        (10, "fired", 1),
        (11, "fired", 1),
        (12, "missing", 1),
        (13, "fired", 1),
        (14, "upcoming", 1),
    ]
    assert summary(all_entries)[:6] == expected
    pages: list[LedgerEntry] = []
    while page := await entries_of(
        node, job, to=NOW + minutes(16), limit=limit, after=pages[-1].scheduled_for if pages else None
    ):
        assert len(page) <= limit
        pages += page
    assert pages == all_entries


async def test_a_window_that_begins_inside_a_range_includes_the_range(node: SteppedNode) -> None:
    job = await node.put()
    await node.step(NOW + minutes(10) + seconds(10))
    found = await entries_of(node, job, from_=NOW + minutes(5), to=NOW + minutes(12))
    assert summary(found) == [(1, "misfire", 9), (10, "fired", 1), (11, "upcoming", 1)]

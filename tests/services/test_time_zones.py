"""Changes of the tz database under running nodes: affected ticks move once, and the ledger, the audit and why say so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from everbeat.core.errors import StoreUnavailable
from everbeat.core.schedules import DEFAULT_TENANT, Schedule, Status
from everbeat.core.zones import fingerprint_of, forget_zones, load_zone
from everbeat.services import time_zones
from everbeat.services.events import ScheduleFaulted, ZonesChanged, ZonesOutdated
from everbeat.store.base import Store
from everbeat.store.values import ZoneInUse
from tests.factories import NOW, SteppedNode, find, ledger, ledger_summary
from tests.support.time_zone_files import BERLIN, replace_file, replaced_zone

ZONE = "Europe/Berlin"
# At nine o'clock on the day after NOW, in the zone as it is, and with an offset of three hours.
NINE, NINE_AFTER_CHANGE = datetime(2026, 3, 3, 8, tzinfo=UTC), datetime(2026, 3, 3, 6, tzinfo=UTC)
THREE_HOURS, NO_OFFSET = "<+03>-3", "<+00>0"


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


@pytest.fixture
def zone_file(tmp_path: Path) -> Iterator[Path]:
    with replaced_zone(tmp_path, ZONE, BERLIN) as path:
        yield path


async def watch(node: SteppedNode) -> None:
    await node.engine.time_zones.run_once(node.now)


async def test_an_affected_next_tick_moves_once_and_the_ledger_says_so(store: Store, zone_file: Path) -> None:
    node, other = SteppedNode(store), SteppedNode(store, name="other")
    job = await node.put(cron="0 9 * * *", timezone=ZONE, overlap="allow")
    unaffected = await node.put("utc", cron="0 9 * * *")
    for each in (node, other):
        await watch(each)
        assert each.events_of(ZonesChanged) == []
    assert (await find(store, job)).next_tick_at == NINE
    replace_file(zone_file, THREE_HOURS)
    for _ in range(3):
        for each in (node, other):
            await watch(each)
    moved = await find(store, job)
    assert (moved.next_tick_at, moved.moved_tick_at, moved.revision) == (NINE_AFTER_CHANGE, NINE, 2)
    assert (await find(store, unaffected)).revision == 1
    assert [event for each in (node, other) for event in each.events_of(ZonesChanged)] == [
        ZonesChanged([ZONE], 1),
        ZonesChanged([ZONE], 0),
    ]
    await node.run(NINE + hours(24), by_seconds=1800)
    rows = ledger_summary(await ledger(store, job.id), NINE)
    assert rows == [(-7200, "fired", 1), (0, "zone_changed", 1), (22 * 3600, "fired", 1)]
    count = await node.count()
    assert (count.missing, count.doubled, count.skipped["zone_changed"]) == (0, 0, 1)
    assert count.expected == count.fired + count.skipped.total()


async def test_a_moved_tick_is_explained_before_and_after_it_passes(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE)
    await watch(node)
    replace_file(zone_file, THREE_HOURS)
    await watch(node)
    explainer = node.engine.explainer
    before = await explainer.explain(DEFAULT_TENANT, "job", NINE, now=node.now)
    assert before.verdict == "will_skip"
    assert "the tz database changed its rules for Europe/Berlin" in before.explanation
    await node.run(NINE + hours(24), by_seconds=1800)
    after = await explainer.explain(DEFAULT_TENANT, "job", NINE, now=node.now)
    assert after.verdict == "skipped"
    assert "the tick moved to another time" in after.explanation
    assert (await find(store, job)).status is Status.ACTIVE


async def test_schedules_of_many_pages_are_moved_and_a_failure_continues_where_it_was(
    store: Store, zone_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_zones, "_MOVED_PAGE", 2)
    monkeypatch.setattr(time_zones, "_FIRST_PAGE", 2)
    node = SteppedNode(store)
    jobs = [await node.put(f"job-{number}", cron="0 9 * * *", timezone=ZONE) for number in range(5)]
    await watch(node)
    replace_file(zone_file, THREE_HOURS)
    watched = node.engine.time_zones._store
    pages, read = 0, watched.schedule_in_zones

    async def fail_at_the_second_page(*args: Any, **options: Any) -> list[Schedule]:
        nonlocal pages
        pages += 1
        if pages == 2:
            raise StoreUnavailable("lost")
        return await read(*args, **options)

    monkeypatch.setattr(watched, "schedule_in_zones", fail_at_the_second_page)
    with pytest.raises(StoreUnavailable):
        await watch(node)
    assert [(await find(store, job)).revision for job in jobs] == [2, 2, 1, 1, 1]
    await watch(node)
    assert [(await find(store, job)).revision for job in jobs] == [2] * 5
    assert pages == 4  # the first page was not read again


async def test_moving_many_schedules_is_divided_into_iterations(
    store: Store, zone_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_zones, "_MOVED_PAGE", 1)
    monkeypatch.setattr(time_zones, "_MOVE_SECONDS", 0.0)
    node = SteppedNode(store)
    jobs = [await node.put(f"job-{number}", cron="0 9 * * *", timezone=ZONE) for number in range(2)]
    await watch(node)
    replace_file(zone_file, THREE_HOURS)
    assert await node.engine.time_zones.run_once(node.now)
    assert [(await find(store, job)).revision for job in jobs] == [1, 1]
    monkeypatch.setattr(time_zones, "_MOVE_SECONDS", 60.0)
    assert not await node.engine.time_zones.run_once(node.now)
    assert [(await find(store, job)).revision for job in jobs] == [2, 2]


async def test_after_the_first_pass_the_zones_of_one_page_are_read_at_a_time(
    store: Store, zone_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_zones, "_FIRST_PAGE", 1)
    monkeypatch.setattr(time_zones, "_LATER_PAGE", 1)
    monkeypatch.setattr(time_zones, "_LIST_EVERY", 2)
    node = SteppedNode(store)
    for number in range(3):
        await node.put(f"job-{number}", cron="0 9 * * *")
    watched = node.engine.time_zones._store
    pages, read = 0, watched.schedule_zones

    async def count_pages(*args: Any, **options: Any) -> list[ZoneInUse]:
        nonlocal pages
        pages += 1
        return await read(*args, **options)

    monkeypatch.setattr(watched, "schedule_zones", count_pages)
    counts = []
    for _ in range(9):
        await watch(node)
        counts.append(pages)
        pages = 0
    assert counts == [3, 0, 1, 1, 1, 0, 1, 1, 1]


async def test_a_file_that_changes_without_its_rules_changes_nothing(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE)
    await watch(node)
    replace_file(zone_file, "CET-1CEST-2,M3.5.0/2,M10.5.0/3")
    await watch(node)
    assert (await find(store, job)).revision == 1
    assert node.events_of(ZonesChanged) == []


async def test_a_file_that_is_written_only_in_part_is_read_again_later(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE)
    await watch(node)
    zone_file.write_bytes(b"TZif2")
    await watch(node)
    assert (await find(store, job)).next_tick_at == NINE
    replace_file(zone_file, THREE_HOURS)
    await watch(node)
    assert (await find(store, job)).next_tick_at == NINE_AFTER_CHANGE


async def test_an_overdue_tick_that_does_not_move_is_still_caught_up(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE)
    await watch(node)
    node.move_to(NINE + timedelta(minutes=10))
    replace_file(zone_file, "CET-1CEST,M4.1.0,M10.5.0/3")  # summer time begins a week later
    await watch(node)
    await node.run(NINE + timedelta(minutes=11), by_seconds=10)
    assert ledger_summary(await ledger(store, job.id), NINE) == [(0, "fired", 1)]


async def test_a_tick_that_moves_into_the_past_fires_late(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE, misfire_grace_seconds=7200, overlap="allow")
    await watch(node)
    node.move_to(NINE_AFTER_CHANGE + timedelta(minutes=30))
    replace_file(zone_file, THREE_HOURS)
    await watch(node)
    await node.run(NINE + hours(25), by_seconds=1800)
    rows = ledger_summary(await ledger(store, job.id), NINE)
    assert rows == [(-7200, "fired", 1), (0, "zone_changed", 1), (22 * 3600, "fired", 1)]


async def test_a_tick_that_returns_to_its_time_fires_normally(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE, overlap="allow")
    await watch(node)
    for rule in (NO_OFFSET, BERLIN):
        replace_file(zone_file, rule)
        await watch(node)
    await node.run(NINE + hours(2), by_seconds=1800)
    assert ledger_summary(await ledger(store, job.id), NINE) == [(0, "fired", 1)]
    await node.run(NINE + hours(25), by_seconds=1800)
    assert ledger_summary(await ledger(store, job.id), NINE) == [
        (0, "fired", 1),
        (3600, "zone_changed", 1),
        (24 * 3600, "fired", 1),
    ]
    assert (await node.count()).missing == 0


async def test_an_edit_or_a_pause_records_a_moved_tick_that_has_passed(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE)
    await watch(node)
    replace_file(zone_file, NO_OFFSET)
    await watch(node)
    await node.run(NINE + timedelta(minutes=30), by_seconds=600)
    assert await ledger(store, job.id) == []
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    assert ledger_summary(await ledger(store, job.id), NINE) == [(0, "zone_changed", 1)]


async def test_a_zone_in_an_expression_or_a_rule_is_watched_too(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    jobs = [
        await node.put("cron", cron=f"CRON_TZ={ZONE} 0 9 * * *"),
        await node.put("rrule", cron=None, rrule=f"DTSTART;TZID={ZONE}:20260101T090000 RRULE:FREQ=DAILY"),
    ]
    other = await node.put("other", cron="TZ=Asia/Tokyo 0 9 * * *")
    await watch(node)
    replace_file(zone_file, THREE_HOURS)
    await watch(node)
    assert [(await find(store, job)).next_tick_at for job in jobs] == [NINE_AFTER_CHANGE] * 2
    assert (await find(store, other)).revision == 1
    assert node.events_of(ScheduleFaulted) == []


async def test_a_node_that_starts_with_new_rules_moves_the_schedules(store: Store, zone_file: Path) -> None:
    first = SteppedNode(store)
    job = await first.put(cron="0 9 * * *", timezone=ZONE)
    await watch(first)
    replace_file(zone_file, THREE_HOURS)
    forget_zones()  # a new process has nothing in its caches
    second = SteppedNode(store, name="second")
    await watch(second)
    assert (await find(store, job)).next_tick_at == NINE_AFTER_CHANGE
    assert second.events_of(ZonesChanged) == [ZonesChanged([ZONE], 1)]


async def test_a_node_with_an_older_version_changes_nothing_and_says_so(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE)
    await watch(node)
    newer = fingerprint_of(load_zone("Asia/Tokyo"))
    await store.zone_write({ZONE: newer}, now=NOW + timedelta(minutes=1))
    late = SteppedNode(store, name="late")
    await watch(late)
    await watch(late)
    assert late.events_of(ZonesOutdated) == [ZonesOutdated([ZONE])]
    assert late.events_of(ZonesChanged) == []
    assert (await find(store, job)).revision == 1


async def test_a_firing_that_was_planned_before_the_change_is_planned_again(store: Store, zone_file: Path) -> None:
    node = SteppedNode(store)
    job = await node.put(cron="0 9 * * *", timezone=ZONE, overlap="allow")
    await watch(node)
    await node.run(NINE - timedelta(seconds=2), by_seconds=1800)  # within the horizon: the tick is in the index
    replace_file(zone_file, NO_OFFSET)
    await watch(node)
    await node.run(NINE + hours(1), by_seconds=60)
    assert ledger_summary(await ledger(store, job.id), NINE) == [(0, "zone_changed", 1), (3600, "fired", 1)]

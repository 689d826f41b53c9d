"""The ticker: ticks fire on time and once, catch-up follows the policy, and faults do not lose or double ticks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.errors import StoreRefused, StoreUnavailable
from everbeat.core.jitter import jitter_of
from everbeat.core.misfire import Lateness
from everbeat.core.schedules import DEFAULT_TENANT, Status
from everbeat.services.events import LagHigh, ScheduleFaulted, TicksAlreadyRecorded, TicksFired, TicksRefused, TicksSkipped
from everbeat.services.ticker import TickerSettings
from everbeat.store.base import Store
from everbeat.store.values import FireResult, Firing
from tests.factories import (
    NOW,
    SteppedNode,
    StoreOverride,
    claim,
    complete,
    count_rows,
    definition,
    execute_raw,
    find,
    insert,
    ledger,
    ledger_summary,
    make_schedule,
    minutes,
    seconds,
)


async def finish_tasks(store: Store, now: datetime) -> None:
    """Claim and complete all ready tasks, so that no tick overlaps."""
    while tasks := await claim(store, limit=500, now=now):
        await complete(store, *tasks, now=now)


async def test_a_tick_fires_on_time_and_not_before(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put()
    await node.step(NOW + seconds(59.999999))
    assert await ledger(store, job.id) == []
    await node.step(NOW + seconds(60))
    assert ledger_summary(await ledger(store, job.id)) == [(60, "fired", 1)]
    assert node.events_of(TicksFired) == [TicksFired([0.0], [0.0])]


async def test_every_tick_of_an_hour_fires_once(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(60), by_seconds=30)
    assert ledger_summary(await ledger(store, job.id)) == [(60 * number, "fired", 1) for number in range(1, 61)]
    assert await count_rows(store, "tasks") == 60
    count = await node.count()
    assert (count.expected, count.fired, count.missing, count.doubled) == (60, 60, 0, 0)


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("latest", [(60, "misfire", 4), (300, "fired", 1), (360, "fired", 1)]),
        ("none", [(60, "misfire", 5), (360, "fired", 1)]),
        ("all", [(60 * number, "fired", 1) for number in range(1, 7)]),
    ],
)
async def test_after_an_outage_of_five_minutes_it_catches_up_by_the_policy(
    store: Store, catch_up: str, expected: list[tuple[float, str, int]]
) -> None:
    node = SteppedNode(store, settings=TickerSettings(lateness=Lateness(catch_up_rate=0)))
    job = await node.put(catch_up=catch_up, overlap="allow")
    await node.step(NOW + minutes(5) + seconds(10))
    await node.step(NOW + minutes(6))
    assert ledger_summary(await ledger(store, job.id)) == expected
    count = await node.count()
    assert (count.expected, count.fired + count.skipped.total(), count.missing) == (6, 6, 0)


async def test_catch_up_of_all_ticks_is_spread_over_time(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put(catch_up="all", overlap="allow")
    back = NOW + minutes(5) + seconds(10)
    await node.step(back)
    assert await count_rows(store, "tasks") == 1
    await node.run(NOW + minutes(12), by_seconds=5)
    ticks = await ledger(store, job.id)
    assert [tick.scheduled_for for tick in ticks] == [NOW + minutes(number) for number in range(1, 13)]
    caught_up = [tick.fired_at - back for tick in ticks if tick.fired_at - tick.scheduled_for > seconds(5)]
    assert caught_up == [seconds(30 * number) for number in range(len(caught_up))]
    assert len(caught_up) == 8


async def test_ticks_older_than_the_grace_are_recorded_and_not_fired(store: Store) -> None:
    node = SteppedNode(store, settings=TickerSettings(lateness=Lateness(catch_up_rate=0)))
    job = await node.put(catch_up="all", overlap="allow", misfire_grace_seconds=120)
    await node.step(NOW + minutes(10))
    assert ledger_summary(await ledger(store, job.id)) == [
        (60, "misfire", 7),
        (480, "fired", 1),
        (540, "fired", 1),
        (600, "fired", 1),
    ]


async def test_a_tick_that_overlaps_is_skipped_and_the_next_one_fires(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put()
    await node.run(NOW + minutes(2), by_seconds=60)
    await finish_tasks(store, node.now)
    await node.run(NOW + minutes(3), by_seconds=60)
    assert ledger_summary(await ledger(store, job.id)) == [(60, "fired", 1), (120, "overlap", 1), (180, "fired", 1)]
    assert node.events_of(TicksSkipped) == [TicksSkipped({"overlap": 1})]


async def test_jitter_moves_the_firing_and_the_ledger_keeps_the_nominal_time(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put(jitter_seconds=30, overlap="allow")
    jitter = jitter_of(job.id, 30)
    await node.run(NOW + minutes(3), by_seconds=4)
    ticks = await ledger(store, job.id)
    assert [tick.scheduled_for for tick in ticks] == [NOW + minutes(1), NOW + minutes(2)]
    assert all(seconds(0) <= tick.fired_at - tick.scheduled_for - jitter <= seconds(4) for tick in ticks)


async def test_a_schedule_with_an_end_finishes_after_its_last_tick(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put(ends_at=(NOW + minutes(2)).isoformat(), overlap="allow")
    await node.run(NOW + minutes(5), by_seconds=10)
    done = await find(store, job)
    assert (done.status, done.next_tick_at) == (Status.FINISHED, None)
    assert ledger_summary(await ledger(store, job.id)) == [(60, "fired", 1), (120, "fired", 1)]


async def test_ticks_in_a_dst_gap_are_recorded(store: Store) -> None:
    start = datetime(2026, 3, 27, 12, tzinfo=UTC)
    node = SteppedNode(store, now=start)
    job = await node.put(cron="30 2 * * *", timezone="Europe/Berlin", dst={"gap": "skip"}, overlap="allow")
    for day in range(1, 5):
        await node.step(start + timedelta(days=day))
    reasons = [str(tick.reason or tick.outcome) for tick in await ledger(store, job.id)]
    assert reasons == ["misfire", "dst_gap", "misfire", "misfire"]
    count = await node.count(from_=start)
    assert (count.missing, count.expected) == (0, 4)


async def test_nothing_fires_after_an_acknowledged_pause(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put()
    await node.step(NOW + seconds(58))  # the tick is already in the index
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    await node.run(NOW + minutes(3), by_seconds=8)
    assert await count_rows(store, "tasks") == 0
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    assert ledger_summary(await ledger(store, job.id)) == [(60, "paused", 3)]
    await node.run(NOW + minutes(4), by_seconds=8)
    assert await count_rows(store, "tasks") == 1


async def test_a_deleted_schedule_does_not_fire_from_the_index(store: Store) -> None:
    node = SteppedNode(store)
    await node.put()
    await node.step(NOW + seconds(58))
    await node.schedules.delete(DEFAULT_TENANT, "job")
    await node.step(NOW + seconds(60))
    assert await count_rows(store, "tasks") == await count_rows(store, "ticks") == 0


# Faulty schedules


async def test_one_faulty_schedule_among_hundreds_is_paused(store: Store) -> None:
    node = SteppedNode(store)
    items = [definition(f"job-{number:03}") for number in range(300)]
    registered = await node.schedules.put_batch(DEFAULT_TENANT, items, now=NOW)
    bad = registered[137].schedule
    await execute_raw(store, "UPDATE schedules SET timezone = 'Mars/Olympus' WHERE id = ?", bad.id)
    await node.step(NOW + minutes(1))
    assert await count_rows(store, "tasks") == 299
    faulty = await find(store, bad)
    assert faulty.status is Status.PAUSED
    assert faulty.fault is not None
    assert "Mars/Olympus" in faulty.fault
    assert [event.schedule_id for event in node.events_of(ScheduleFaulted)] == [bad.id]
    await node.step(NOW + minutes(2))
    assert len(node.events_of(ScheduleFaulted)) == 1


async def test_a_refused_batch_is_halved_until_the_faulty_schedules_are_found(store: Store) -> None:
    class RefusingStore(StoreOverride):
        refused_ids: frozenset[UUID] = frozenset()

        async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], **more: Any) -> FireResult:
            if any(firing.schedule_id in self.refused_ids for firing in firings):
                raise StoreRefused("this cannot be written")
            result: FireResult = await self.inner.tick_fire(node_id, firings, **more)
            return result

    refusing = RefusingStore(store)
    node = SteppedNode(refusing)
    items = [definition(f"job-{number:03}") for number in range(100)]
    registered = await node.schedules.put_batch(DEFAULT_TENANT, items, now=NOW)
    refusing.refused_ids = frozenset(registered[number].schedule.id for number in (3, 64))
    await node.step(NOW + minutes(1))
    assert await count_rows(store, "tasks") == 98
    assert {event.schedule_id for event in node.events_of(ScheduleFaulted)} == refusing.refused_ids
    assert {one.fault for one in await store.schedule_faulty(None, limit=10)} == {"this cannot be written"}


async def test_a_schedule_whose_task_violates_a_constraint_is_paused(store: Store) -> None:
    """A real refusal: a constraint on tasks that the payload of one schedule violates."""
    node = SteppedNode(store)
    for number in range(20):
        await node.put(f"job-{number}", payload={"n": number})
    condition = "NEW.payload = '{\"n\":7}'"
    if store.dialect == "sqlite":
        await execute_raw(
            store,
            f"CREATE TRIGGER no_seven BEFORE INSERT ON tasks WHEN {condition} BEGIN SELECT RAISE(ABORT, 'no seven'); END",
        )
    else:
        await execute_raw(store, "ALTER TABLE tasks ADD CONSTRAINT no_seven CHECK (payload <> '{\"n\":7}')")
    await node.step(NOW + minutes(1))
    assert await count_rows(store, "tasks") == 19
    (faulty,) = await store.schedule_faulty(None, limit=10)
    assert faulty.spec.name == "job-7"
    assert "no_seven" in str(faulty.fault) or "no seven" in str(faulty.fault)


# Lost replies, paused nodes, bursts


class LostReplyStore(StoreOverride):
    """Commits the firing, and then loses the reply."""

    lost_replies = 0

    async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], **more: Any) -> FireResult:
        result: FireResult = await self.inner.tick_fire(node_id, firings, **more)
        if self.lost_replies:
            self.lost_replies -= 1
            raise StoreUnavailable("the reply was lost")
        return result


async def test_a_firing_whose_outcome_is_unknown_is_neither_doubled_nor_lost(store: Store) -> None:
    losing_replies = LostReplyStore(store)
    node = SteppedNode(losing_replies, settings=TickerSettings(batch_size=10, parallel_batches=1))
    for number in range(25):
        await node.put(f"job-{number}", overlap="allow")
    for minute in range(1, 4):
        losing_replies.lost_replies = 2
        await node.renew(NOW + minutes(minute))
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await node.tick()
        await node.tick()
    assert await count_rows(store, "tasks") == 75
    count = await node.count()
    assert (count.expected, count.fired, count.missing, count.doubled) == (75, 75, 0, 0)


async def test_an_unavailable_database_only_delays_ticks(store: Store) -> None:
    class UnavailableStore(StoreOverride):
        is_unavailable = False

        async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], **more: Any) -> FireResult:
            if self.is_unavailable:
                raise StoreUnavailable("unavailable")
            result: FireResult = await self.inner.tick_fire(node_id, firings, **more)
            return result

    unavailable = UnavailableStore(store)
    node = SteppedNode(unavailable)
    job = await node.put()
    unavailable.is_unavailable = True
    with pytest.raises(StoreUnavailable):
        await node.step(NOW + minutes(1))
    unavailable.is_unavailable = False
    await node.step(NOW + minutes(1) + seconds(3))
    assert ledger_summary(await ledger(store, job.id)) == [(60, "fired", 1)]


async def test_a_node_that_resumes_after_a_takeover_changes_nothing(store: Store) -> None:
    paused, successor = SteppedNode(store), SteppedNode(store)
    job = await paused.put(overlap="allow")
    await paused.step(NOW + seconds(58))
    successor.move_to(NOW + seconds(58))
    await successor.ownership.run_once(successor.now)
    await successor.step(NOW + seconds(70))
    assert ledger_summary(await ledger(store, job.id)) == [(60, "fired", 1)]
    # Its monotonic clock stood still during the pause, so it still trusts its lease and considers the tick due.
    paused.now = NOW + seconds(71)
    assert paused.owned
    before = await find(store, job)
    await paused.ticker.run_once(paused.now)
    assert await find(store, job) == before
    assert await count_rows(store, "tasks") == 1
    # The same applies to a tick that no node has fired.
    paused.now = NOW + seconds(120)
    assert await paused.ticker.run_once(paused.now)
    assert await count_rows(store, "tasks") == 1
    assert paused.events_of(TicksRefused)


async def test_a_node_that_lost_its_lease_clears_its_index(store: Store) -> None:
    node = SteppedNode(store)
    await node.put()
    await node.step(NOW + seconds(58))
    await node.tick(NOW + seconds(75))
    assert await count_rows(store, "tasks") == 0
    await node.step(NOW + seconds(76))
    assert await count_rows(store, "tasks") == 1


async def test_a_tick_that_is_already_recorded_is_reported_and_not_fired_again(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put(overlap="allow")
    await node.step(NOW + minutes(1))
    await execute_raw(store, "UPDATE schedules SET next_tick_at = ?, due_at = ?", NOW + minutes(1), NOW + minutes(1))
    await node.step(NOW + minutes(1) + seconds(1))
    assert node.events_of(TicksAlreadyRecorded) == [TicksAlreadyRecorded(1)]
    assert await count_rows(store, "tasks") == 1
    assert (await find(store, job)).next_tick_at == NOW + minutes(2)


async def test_a_burst_of_thousands_fires_completely_with_a_small_index(store: Store) -> None:
    burst = 5000
    node = SteppedNode(store, lease_seconds=60, settings=TickerSettings(batch_size=500, index_size=256))
    await node.step(NOW - seconds(1))
    batch = [make_schedule(f"job-{number:04}", at=NOW + seconds(number % 5)) for number in range(burst)]
    for start in range(0, burst, 1000):
        await insert(store, *batch[start : start + 1000])
    await node.renew(NOW + seconds(8))
    largest, fired = 0, 0
    while await node.ticker.run_once(node.now):
        largest = max(largest, len(node.ticker._index))
        before, fired = fired, sum(len(event.lags_seconds) for event in node.events_of(TicksFired))
        assert fired > before
    assert fired == await count_rows(store, "tasks") == burst
    assert largest <= 16 * 256
    assert node.events_of(LagHigh)


async def test_a_burst_begins_with_a_small_batch(store: Store) -> None:
    """The first tasks of a burst can start while the rest is being fired."""

    class RecordingStore(StoreOverride):
        sizes: list[int]

        async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], **more: Any) -> FireResult:
            self.sizes.append(len(firings))
            result: FireResult = await self.inner.tick_fire(node_id, firings, **more)
            return result

    recording = RecordingStore(store)
    recording.sizes = []
    node = SteppedNode(recording, settings=TickerSettings(batch_size=200))
    await insert(store, *(make_schedule(f"job-{number}", at=NOW, jitter_seconds=0) for number in range(400)))
    await node.renew(NOW)
    await node.ticker.run_once(node.now)
    assert recording.sizes == [64, 200, 136]
    assert await count_rows(store, "tasks") == 400


async def test_the_oldest_due_ticks_fire_first(store: Store) -> None:
    node = SteppedNode(store, settings=TickerSettings(batch_size=3, parallel_batches=1))
    batch = [make_schedule(f"job-{number}", at=NOW + seconds(number), jitter_seconds=0) for number in (4, 2, 0, 3, 1)]
    await insert(store, *batch)
    await node.renew(NOW + seconds(4))
    await node.ticker.run_once(node.now)
    fired = {tick.scheduled_for for one in batch for tick in await ledger(store, one.id)}
    assert fired == {NOW, NOW + seconds(1), NOW + seconds(2)}


async def test_two_nodes_share_the_ticks_and_fire_each_once(store: Store) -> None:
    nodes = [SteppedNode(store) for _ in range(2)]
    for number in range(60):
        await nodes[0].put(f"job-{number}", overlap="allow")
    for step in range(1, 40):
        for node in nodes:
            await node.step(NOW + seconds(5 * step))
    fired = [sum(len(event.lags_seconds) for event in node.events_of(TicksFired)) for node in nodes]
    assert sum(fired) == 180
    assert min(fired) > 20
    count = await nodes[0].count()
    assert (count.fired, count.missing, count.doubled) == (180, 0, 0)


async def test_a_clock_set_back_fires_nothing_again(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(5), by_seconds=20)
    node.now = NOW + minutes(2)
    await node.run(NOW + minutes(6), by_seconds=20)
    assert ledger_summary(await ledger(store, job.id)) == [(60 * number, "fired", 1) for number in range(1, 7)]


async def test_a_clock_that_jumps_an_hour_ahead_fires_each_tick_at_most_once(store: Store) -> None:
    node = SteppedNode(store)
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(2), by_seconds=20)
    node.now = NOW + minutes(62)  # only the database's clock jumps; hardly any time has passed
    await node.renew()
    await node.tick()
    assert ledger_summary(await ledger(store, job.id)) == [
        (60, "fired", 1),
        (120, "fired", 1),
        (180, "misfire", 59),
        (3720, "fired", 1),
    ]

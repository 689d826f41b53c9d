"""Quotas of a tenant: requests are refused exactly at the limit, and the error names the quota and when to retry."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.access import LOCAL_CALLER
from everbeat.core.errors import QuotaExceeded
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import TenantQuotas
from everbeat.core.ticks import SkipReason
from everbeat.core.timeline import TimelineCache
from everbeat.services.attempts import AttemptEnder
from everbeat.services.events import TicksSkipped
from everbeat.services.long_polls import LongPolls
from everbeat.services.publisher import ChangePublisher
from everbeat.services.quotas import QuotaService
from everbeat.services.schedules import ScheduleService
from everbeat.services.tasks import TaskService
from everbeat.services.tenants import TenantDirectory, TenantService
from everbeat.services.ticker import TickerSettings
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter
from tests.factories import NOW, SteppedNode, claim, complete, definition, ledger, ledger_summary, make_input, minutes, seconds


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class QuotaNode:
    """The services of one node that enforce quotas, with a monotonic clock that tests advance."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = FakeClock()
        self.directory = TenantDirectory(store, monotonic=self.clock)
        self.quotas = QuotaService(store, self.directory, monotonic=self.clock)
        publisher = ChangePublisher(store)
        self.schedules = ScheduleService(store, TimelineCache(), publisher, self.quotas)
        long_polls = LongPolls(store, publisher, AttemptEnder(store, publisher).release_claimed)
        self.tasks = TaskService(store, long_polls, publisher, quotas=self.quotas)

    async def limit(self, **quotas: Any) -> None:
        await TenantService(self.store).patch("default", quotas)

    async def submit(self, count: int = 1, **more: Any) -> None:
        given = [make_input(type="work", **more) for _ in range(count)]
        if count == 1:
            await self.tasks.submit(DEFAULT_TENANT, given[0], now=NOW)
        else:
            await self.tasks.submit_batch(DEFAULT_TENANT, given, now=NOW)


@pytest.fixture
def node(store: Store) -> QuotaNode:
    return QuotaNode(store)


# max_schedules


async def test_schedules_are_refused_above_the_quota(node: QuotaNode) -> None:
    await node.limit(max_schedules=3)
    await node.schedules.put_batch(DEFAULT_TENANT, [definition("a"), definition("b")], now=NOW)
    with pytest.raises(QuotaExceeded, match="max_schedules: 2 of 3 in use, 2 more do not fit") as refused:
        await node.schedules.put_batch(DEFAULT_TENANT, [definition("c"), definition("d")], by=LOCAL_CALLER, now=NOW)
    assert refused.value.retry_after_seconds is None
    assert await node.store.schedule_count(DEFAULT_TENANT) == {"active": 2}
    assert await node.store.audit_log_list(None, AuditLogFilter(), before=None, limit=9) == []
    await node.schedules.create(DEFAULT_TENANT, definition("c"), now=NOW)
    with pytest.raises(QuotaExceeded, match=r"max_schedules: 3 of 3 in use$"):
        await node.schedules.create(DEFAULT_TENANT, definition("d"), now=NOW)
    replaced = [definition("a", priority=5), definition("b")]
    changes = [one.status for one in await node.schedules.put_batch(DEFAULT_TENANT, replaced, now=NOW)]
    assert changes == ["updated", "unchanged"]
    await node.schedules.delete(DEFAULT_TENANT, "a")
    await node.schedules.put(DEFAULT_TENANT, "d", definition("d"), now=NOW)


async def test_concurrent_creates_do_not_exceed_the_quota(node: QuotaNode) -> None:
    await node.limit(max_schedules=5)
    made = await asyncio.gather(
        *(node.schedules.create(DEFAULT_TENANT, definition(f"job-{number}"), now=NOW) for number in range(12)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, QuotaExceeded) for one in made) == 7
    assert await node.store.schedule_count(DEFAULT_TENANT) == {"active": 5}


async def test_a_lowered_quota_removes_nothing(node: QuotaNode) -> None:
    await node.schedules.put_batch(DEFAULT_TENANT, [definition("a"), definition("b")], now=NOW)
    await node.limit(max_schedules=1)
    await node.schedules.pause(DEFAULT_TENANT, "a", note=None, now=NOW)
    with pytest.raises(QuotaExceeded):
        await node.schedules.create(DEFAULT_TENANT, definition("c"), now=NOW)


# max_payload_bytes


async def test_payloads_are_refused_above_the_quota(node: QuotaNode) -> None:
    large, small = {"a": "x" * 100}, {"a": "x" * 10}
    await node.schedules.create(DEFAULT_TENANT, definition("old", payload=large), now=NOW)
    await node.limit(max_payload_bytes=50)
    await node.submit(payload=small)
    for attempt in (
        node.submit(payload=large),
        node.submit(2, payload=large),
        node.schedules.create(DEFAULT_TENANT, definition("new", payload=large), now=NOW),
        node.schedules.patch(DEFAULT_TENANT, "old", {"payload": {"a": "y" * 100}}, now=NOW),
    ):
        with pytest.raises(
            QuotaExceeded, match="max_payload_bytes: the payload has 108 bytes, at most 50 are allowed"
        ) as refused:
            await attempt
        assert refused.value.retry_after_seconds is None
    await node.schedules.patch(DEFAULT_TENANT, "old", {"priority": 5}, now=NOW)  # an existing payload may stay


# submits_per_second


async def test_submits_are_limited_to_their_rate(node: QuotaNode) -> None:
    await node.limit(submits_per_second=2)
    await node.submit(2)
    with pytest.raises(QuotaExceeded, match="submits_per_second: more than 2 tasks per second") as refused:
        await node.submit()
    assert refused.value.retry_after_seconds == pytest.approx(0.5)
    node.clock.now += 0.5
    await node.submit()
    with pytest.raises(QuotaExceeded):
        await node.submit()


async def test_a_batch_above_the_burst_is_admitted_and_delays_later_submits(node: QuotaNode) -> None:
    await node.limit(submits_per_second=2)
    await node.submit(10)
    with pytest.raises(QuotaExceeded) as refused:
        await node.submit()
    assert refused.value.retry_after_seconds == pytest.approx(4.5)
    node.clock.now += 4.5
    await node.submit()
    with pytest.raises(QuotaExceeded):
        await node.submit(10)


async def test_a_rate_below_one_admits_single_submits(node: QuotaNode) -> None:
    await node.limit(submits_per_second=0.1)
    await node.submit()
    with pytest.raises(QuotaExceeded) as refused:
        await node.submit()
    assert refused.value.retry_after_seconds == pytest.approx(10)


# max_ready


async def test_ready_tasks_are_refused_above_the_quota(node: QuotaNode) -> None:
    await node.limit(max_ready=3)
    await node.submit(2)
    await node.submit(5, delay_seconds=61)  # not due soon
    with pytest.raises(QuotaExceeded, match="max_ready: 2 tasks are ready or due within a minute, at most 3 are") as refused:
        await node.submit(2)
    assert refused.value.retry_after_seconds is not None
    await node.submit()
    with pytest.raises(QuotaExceeded):
        await node.submit(run_at=NOW - seconds(1))
    await complete(node.store, *await claim(node.store, limit=1))
    await node.submit()
    assert await node.store.task_ready_count(DEFAULT_TENANT, limit=99, now=NOW) == 3


@pytest.mark.parametrize("more", [{"delay_seconds": 0.001}, {"delay_seconds": 60}, {"run_at": NOW + seconds(1)}])
async def test_a_short_delay_does_not_avoid_the_quota(node: QuotaNode, more: dict[str, Any]) -> None:
    await node.limit(max_ready=3)
    await node.submit(2, **more)
    with pytest.raises(QuotaExceeded):
        await node.submit(2, **more)
    await node.submit(**more)
    with pytest.raises(QuotaExceeded):
        await node.submit()


async def test_moving_a_task_to_an_earlier_time_does_not_avoid_the_quota(node: QuotaNode) -> None:
    await node.limit(max_ready=2)
    later = [
        (await node.tasks.submit(DEFAULT_TENANT, make_input(type="work", delay_seconds=3600), now=NOW))[0].id for _ in range(4)
    ]
    await node.tasks.reschedule(DEFAULT_TENANT, later[0], NOW - seconds(5), now=NOW)
    await node.tasks.reschedule(DEFAULT_TENANT, later[1], NOW + seconds(30), now=NOW)
    for run_at in (NOW - seconds(1), NOW, NOW + seconds(60)):
        with pytest.raises(QuotaExceeded, match="max_ready"):
            await node.tasks.reschedule(DEFAULT_TENANT, later[2], run_at, now=NOW)
    await node.tasks.reschedule(DEFAULT_TENANT, later[2], NOW + seconds(61), now=NOW)
    await node.tasks.reschedule(DEFAULT_TENANT, later[1], NOW, now=NOW)  # it counts already
    await node.tasks.reschedule(DEFAULT_TENANT, later[0], NOW + minutes(9), now=NOW)
    await node.tasks.reschedule(DEFAULT_TENANT, later[2], NOW, now=NOW)


# min_priority


async def test_a_better_priority_than_allowed_is_lowered(node: QuotaNode) -> None:
    early, _ = await node.tasks.submit(DEFAULT_TENANT, make_input(type="work", priority=0), now=NOW)
    await node.limit(min_priority=50)
    for priority, expected in ((0, 50), (50, 50), (200, 200)):
        task, _ = await node.tasks.submit(DEFAULT_TENANT, make_input(type="work", priority=priority), now=NOW)
        assert task.priority == expected
    (id_,) = await node.tasks.submit_batch(DEFAULT_TENANT, [make_input(type="work", priority=3)], now=NOW)
    assert (await node.tasks.get(DEFAULT_TENANT, id_)).priority == 50
    assert (await node.tasks.get(DEFAULT_TENANT, early.id)).priority == 0, "tasks that exist are not changed"
    await node.limit(min_priority=None)
    assert (await node.tasks.submit(DEFAULT_TENANT, make_input(type="work", priority=0), now=NOW))[0].priority == 0


async def test_concurrent_submits_do_not_exceed_the_quota(node: QuotaNode) -> None:
    await node.limit(max_ready=7)
    given = make_input(type="work")
    made = await asyncio.gather(*(node.tasks.submit(DEFAULT_TENANT, given) for _ in range(40)), return_exceptions=True)
    assert sum(isinstance(one, QuotaExceeded) for one in made) == 33
    assert await node.store.task_ready_count(DEFAULT_TENANT, limit=99) == 7


async def test_a_batch_above_the_quota_is_refused_without_a_retry_time(node: QuotaNode) -> None:
    await node.limit(max_ready=3)
    with pytest.raises(QuotaExceeded, match="the request has 4 ready tasks, at most 3 are allowed") as refused:
        await node.submit(4)
    assert refused.value.retry_after_seconds is None


async def test_a_refused_batch_does_not_count_towards_the_rate(node: QuotaNode) -> None:
    await node.limit(max_ready=1, submits_per_second=2)
    await node.submit()
    with pytest.raises(QuotaExceeded, match="max_ready"):
        await node.submit()
    await node.limit(max_ready=None)
    await node.submit()


async def test_tenants_without_the_quota_are_never_counted(node: QuotaNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def counted(*_: Any, **__: Any) -> int:
        raise AssertionError("not expected to be called")

    monkeypatch.setattr(node.store, "task_ready_count", counted)
    await node.submit(5)
    assert await node.quotas.of(UUID(int=99)) == TenantQuotas()


# Ticks


async def test_a_burst_of_ticks_fires_up_to_the_quota_and_the_rest_is_recorded(store: Store) -> None:
    node = SteppedNode(store, now=NOW - seconds(30), settings=TickerSettings(batch_size=20))
    await TenantService(store).patch("default", {"max_ready": 30})
    names = [f"job-{number:03}" for number in range(100)]
    await node.schedules.put_batch(DEFAULT_TENANT, [definition(name) for name in names], now=node.now)
    await node.renew(NOW)
    await node.tick()
    assert await store.task_ready_count(DEFAULT_TENANT, limit=999) == 30
    count = await node.count()
    assert (count.expected, count.fired, count.missing, count.skipped) == (100, 30, 0, {"quota": 70})
    found = (await store.schedule_find(DEFAULT_TENANT, names=names)).schedules
    reasons = [(await ledger(store, one.id))[0].reason for one in found]
    assert (reasons.count(None), reasons.count(SkipReason.QUOTA)) == (30, 70)
    assert sum(event.counts["quota"] for event in node.events_of(TicksSkipped)) == 70

    done = await claim(store, limit=10)
    await complete(store, *done)
    await node.renew(NOW + minutes(1))
    await node.tick()
    assert await store.task_ready_count(DEFAULT_TENANT, limit=999) == 30
    later = await node.count()
    assert (later.fired, later.missing) == (40, 0)
    assert later.skipped["quota"] + later.skipped["overlap"] == 160


async def test_a_tick_beyond_the_quota_is_recorded_as_skipped_and_does_not_fire_later(store: Store) -> None:
    node = SteppedNode(store, now=NOW - seconds(30))
    await TenantService(store).patch("default", {"max_ready": 0})
    await node.put(catch_up="all")
    await node.renew(NOW)
    await node.tick()
    await TenantService(store).patch("default", {"max_ready": None})
    await node.run(NOW + minutes(2))
    job = await node.schedules.get(DEFAULT_TENANT, "job")
    assert ledger_summary(await ledger(store, job.id)) == [(0, "quota", 1), (60, "fired", 1), (120, "overlap", 1)]
    assert (await node.count()).missing == 0

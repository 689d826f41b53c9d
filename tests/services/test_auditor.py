"""The auditor finds every sabotage within a minute, whichever node runs it, and resolves what has been put right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import uuid_utils.compat

from everbeat.core.audit_findings import AuditFinding, FindingKind, Resolution
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.event_stream import EventKind
from everbeat.services.events import FindingsCounted, FindingsOpened, FindingsResolved, TicksOverdue
from everbeat.services.maintenance import auditor as auditor_module
from everbeat.services.maintenance.auditor import Auditor
from everbeat.store.base import Store
from everbeat.store.values import FindingFilter
from tests.factories import (
    ALL_PARTITIONS,
    FAR_AHEAD,
    NOW,
    SteppedNode,
    cron,
    execute_raw,
    insert,
    make_schedule,
    minutes,
    node_heartbeat,
    seconds,
)

MINUTE = minutes(1)
TICK = NOW + minutes(3)


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


class Watch:
    """Steps one node that fires and one that only audits, and collects what is found."""

    def __init__(self, node: SteppedNode) -> None:
        self.node = node
        self.other = SteppedNode(node.store, now=node.now, name="other")
        self.is_frozen = False

    async def until(self, end: datetime) -> None:
        now = self.node.now
        while now < end:
            now = min(now + seconds(5), end)
            if self.is_frozen:
                self.node.move_to(now)
            else:
                await self.node.step(now)
                await self.node.engine.auditor.run_once(now)
            await self.other.engine.auditor.run_once(now)

    async def open(self) -> list[AuditFinding]:
        return await self.node.store.finding_list(DEFAULT_TENANT, FindingFilter(), limit=100)

    async def kinds(self) -> set[tuple[str, datetime]]:
        return {(one.kind.value, one.scheduled_for) for one in await self.open()}

    async def resolved(self) -> list[AuditFinding]:
        return await self.node.store.finding_list(DEFAULT_TENANT, FindingFilter(is_resolved=True), limit=100)


@pytest.fixture
async def watch(node: SteppedNode) -> Watch:
    """A schedule that ticks every minute and has done so for three minutes, and a watch that has found nothing."""
    watch = Watch(node)
    await node.put("job", overlap="allow")
    await watch.until(TICK + seconds(10))
    assert await watch.open() == []
    return watch


async def hide_by_position(store: Store) -> None:
    await execute_raw(store, "UPDATE schedules SET next_tick_at = ?, due_at = ?", FAR_AHEAD, FAR_AHEAD)


async def hide_by_due_time(store: Store) -> None:
    await execute_raw(store, "UPDATE schedules SET due_at = ?", FAR_AHEAD)


async def move_cursor_ahead(store: Store) -> None:
    values = (FAR_AHEAD, FAR_AHEAD, FAR_AHEAD)
    await execute_raw(store, "UPDATE schedules SET cursor_at = ?, next_tick_at = ?, due_at = ?", *values)


async def mark_as_finished(store: Store) -> None:
    await execute_raw(store, "UPDATE schedules SET status = 'finished', next_tick_at = NULL, due_at = NULL")


@pytest.mark.parametrize("offset", [0, 7, 33, 55])
@pytest.mark.parametrize(
    ("hide", "kind"),
    [
        (hide_by_position, "overdue"),
        (hide_by_due_time, "overdue"),
        (move_cursor_ahead, "missing"),
        (mark_as_finished, "overdue"),
    ],
)
async def test_a_hidden_schedule_is_found_within_a_minute_of_its_tick(
    watch: Watch, hide: Callable[[Store], Awaitable[None]], kind: str, offset: int
) -> None:
    await watch.until(TICK + seconds(offset))
    await hide(watch.node.store)
    await watch.until(TICK + 2 * MINUTE)
    assert (kind, TICK + MINUTE) in await watch.kinds()


@pytest.mark.parametrize("offset", [11, 24, 38, 52])
async def test_a_deleted_ledger_row_is_found_within_a_minute(watch: Watch, offset: int) -> None:
    await watch.until(TICK + seconds(offset))
    await execute_raw(watch.node.store, "DELETE FROM ticks WHERE scheduled_for = ?", TICK - MINUTE)
    await watch.until(watch.node.now + MINUTE)
    assert await watch.kinds() == {("missing", TICK - MINUTE)}


async def test_a_deleted_row_of_a_skipped_tick_is_found(node: SteppedNode) -> None:
    """Such a tick has no task: only the sweep can find it."""
    watch = Watch(node)
    await node.put("job", overlap="skip")
    await watch.until(TICK + seconds(10))
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", TICK)
    await watch.until(node.now + MINUTE)
    assert await watch.kinds() == {("missing", TICK)}


async def test_a_frozen_tick_loop_is_found_by_another_node(watch: Watch) -> None:
    watch.is_frozen = True
    await watch.until(TICK + 2 * MINUTE)
    assert ("overdue", TICK + MINUTE) in await watch.kinds()
    assert [event.names for event in watch.other.events_of(TicksOverdue)][-1] == ["job"]


async def test_a_node_that_freezes_during_its_run_does_not_stop_the_auditor(watch: Watch) -> None:
    store, node = watch.node.store, watch.node
    await watch.until(TICK + seconds(25))
    assert await store.loop_lease_take("auditor", node.id, lease_seconds=20, interval_seconds=0, now=node.now + seconds(15))
    watch.is_frozen = True
    await watch.until(TICK + 2 * MINUTE)
    assert ("overdue", TICK + MINUTE) in await watch.kinds()


async def test_partitions_of_a_dead_node_under_an_endless_lease_are_found_within_a_minute(watch: Watch) -> None:
    store = watch.node.store
    await execute_raw(store, "UPDATE partitions SET owner = ?, lease_until = ?, lease_seconds = 1e9", uuid4(), FAR_AHEAD)
    await watch.until(watch.node.now + MINUTE)
    assert not watch.node.owned
    assert {kind for kind, _ in await watch.kinds()} == {"unowned_partitions"}


async def test_a_node_that_owns_all_partitions_and_fires_nothing_is_found_within_a_minute(watch: Watch) -> None:
    store, stranger = watch.node.store, uuid4()
    await execute_raw(store, "UPDATE partitions SET owner = ?, epoch = epoch + 1", stranger)
    while watch.node.now < TICK + 2 * MINUTE:
        await store.partition_renew(node_heartbeat(stranger), ALL_PARTITIONS, now=watch.node.now)
        await watch.until(watch.node.now + seconds(5))
    assert not watch.node.owned
    assert await watch.kinds() == {("overdue", TICK + MINUTE)}


async def test_ownership_that_is_taken_over_again_resolves_the_finding(watch: Watch) -> None:
    store = watch.node.store
    await execute_raw(store, "UPDATE partitions SET owner = ?, lease_until = ?, lease_seconds = 1e9", uuid4(), FAR_AHEAD)
    await watch.until(watch.node.now + 2 * MINUTE)
    await execute_raw(store, "UPDATE partitions SET owner = NULL, lease_until = NULL")
    await watch.until(watch.node.now + 2 * MINUTE)
    assert await watch.open() == []
    assert {(one.kind.value, one.resolution) for one in await watch.resolved()} >= {
        ("unowned_partitions", Resolution.OVER),
        ("overdue", Resolution.RECORDED),
    }


async def test_a_database_clock_that_was_set_back_is_found_until_it_has_caught_up(watch: Watch) -> None:
    node, reached = watch.node, watch.node.now
    node.now = node.now - minutes(5)
    await watch.until(node.now + seconds(20))
    (finding,) = await watch.open()
    assert finding.kind is FindingKind.CLOCK_SET_BACK
    assert (finding.tenant_id, finding.schedule_id) == (None, None)
    assert reached - seconds(15) <= finding.scheduled_for <= reached
    await watch.until(reached + MINUTE)
    assert await watch.open() == []
    assert [one.resolution for one in await watch.resolved()] == [Resolution.OVER]


async def test_a_doubled_tick_is_found(watch: Watch) -> None:
    store = watch.node.store
    columns = (
        "tenant_id, partition, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority, state, "
        "max_attempts, retry, timeout_seconds, labels, fair_key, created_at"
    )
    await execute_raw(
        store,
        f"INSERT INTO tasks (id, {columns}) SELECT ?, {columns} FROM tasks WHERE scheduled_for = ?",
        uuid_utils.compat.uuid7(),
        TICK,
    )
    await watch.until(watch.node.now + MINUTE)
    (finding,) = await watch.open()
    assert (finding.kind, finding.scheduled_for) == (FindingKind.DOUBLED, TICK)
    assert msgspec.json.decode(finding.details) == {"name": "job", "tasks": 2}


async def test_a_tick_that_fires_after_a_freeze_is_late(watch: Watch) -> None:
    watch.is_frozen = True
    await watch.until(TICK + MINUTE + seconds(50))
    watch.is_frozen = False
    await watch.until(watch.node.now + seconds(40))
    assert await watch.open() == []
    found = {(one.kind, one.resolution) for one in await watch.resolved()}
    assert found >= {(FindingKind.OVERDUE, Resolution.FIRED), (FindingKind.LATE, Resolution.NOTED)}


async def test_a_finding_is_reported_once_as_event_and_in_the_stream(watch: Watch) -> None:
    subscription = watch.node.event_stream.subscribe(DEFAULT_TENANT, {EventKind.CLUSTER})
    other = watch.other.event_stream.subscribe(DEFAULT_TENANT, {EventKind.CLUSTER})
    await hide_by_position(watch.node.store)
    await watch.until(TICK + 3 * MINUTE)
    opened = [*watch.node.events_of(FindingsOpened), *watch.other.events_of(FindingsOpened)]
    assert [[one.kind for one in event.findings] for event in opened] == [[FindingKind.OVERDUE]]
    streamed = [one.data for one in [*await subscription.take(0), *await other.take(0)] if one.data.get("change") == "finding"]
    assert [(one["kind"], one["state"]) for one in streamed] == [("overdue", "open")]
    for each in (watch.node, watch.other):
        counted = each.events_of(FindingsCounted)[-1]
        assert counted.open == {"overdue": 1}
        assert counted.ran_at is not None


async def test_a_backfill_and_the_removal_of_a_schedule_resolve_findings(watch: Watch) -> None:
    node = watch.node
    for tick in (TICK, TICK - MINUTE):
        await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", tick)
    await watch.until(node.now + MINUTE)
    assert await watch.kinds() == {("missing", TICK), ("missing", TICK - MINUTE)}
    await node.backfill.backfill(DEFAULT_TENANT, "job", from_=TICK, to=TICK + seconds(1), now=node.now)
    await watch.until(node.now + MINUTE)
    assert await watch.kinds() == {("missing", TICK - MINUTE)}
    assert [one.resolution for one in await watch.resolved()] == [Resolution.BACKFILLED]
    await node.schedules.delete(DEFAULT_TENANT, "job")
    await watch.until(node.now + MINUTE)
    assert await watch.open() == []
    resolved = [event.findings for each in (node, watch.other) for event in each.events_of(FindingsResolved)]
    assert sorted(str(one.resolution) for found in resolved for one in found) == ["backfilled", "removed"]


async def test_pauses_edits_calendars_jitter_and_catch_up_are_no_findings(node: SteppedNode) -> None:
    watch = Watch(node)
    await node.put("paused", overlap="allow")
    await node.put("edited", overlap="allow")
    await node.put("jittered", overlap="allow", jitter_seconds=300)
    await node.put("rare", cron="0 7 * * *")
    await watch.until(NOW + 2 * MINUTE)
    await node.schedules.pause(DEFAULT_TENANT, "paused", note=None, now=node.now)
    await node.put("edited", cron="*/2 * * * *", overlap="allow")
    await watch.until(NOW + 6 * MINUTE)
    await node.schedules.resume(DEFAULT_TENANT, "paused", now=node.now)
    await node.put("edited", cron="* * * * *", overlap="allow")
    await watch.until(NOW + 8 * MINUTE)
    assert await watch.open() == []
    assert {one.kind for one in await watch.resolved()} <= {FindingKind.LATE}


async def test_a_sweep_continues_in_the_next_run_and_misses_nothing(node: SteppedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor_module, "_PAGE", 3)
    monkeypatch.setattr(auditor_module, "_SWEEP_SHARE", 0.0)
    made = [
        make_schedule(
            f"hidden{index}", rule=cron("* * * * *"), at=FAR_AHEAD, cursor_at=NOW - minutes(2), rule_at=NOW - minutes(2)
        )
        for index in range(10)
    ]
    await insert(node.store, *made)
    watch = Watch(node)
    await watch.until(NOW + 2 * MINUTE)
    assert {one.schedule_id for one in await watch.open()} == {one.id for one in made}


async def test_the_auditor_runs_on_one_node_at_a_time(node: SteppedNode) -> None:
    other = SteppedNode(node.store, name="other")
    worked: list[str] = []

    def spy(auditor: Auditor, name: str) -> None:
        work = auditor.work

        async def count(lease: Any, now: datetime | None) -> str:
            worked.append(name)
            return await work(lease, now)

        auditor.work = count  # type: ignore[method-assign]

    spy(node.engine.auditor, "node")
    spy(other.engine.auditor, "other")
    for at in range(0, 60, 5):
        await node.engine.auditor.run_once(NOW + timedelta(seconds=at))
        await other.engine.auditor.run_once(NOW + timedelta(seconds=at))
    assert worked == ["node"] * 4

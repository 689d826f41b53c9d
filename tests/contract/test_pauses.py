"""pause_write, pause_end, pause_list, pause_find and pause_prune; what firing, submits and claims do with paused queues."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from everbeat.core.errors import HandoffPaused
from everbeat.core.pauses import Pause, PauseScope, pause_of
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.targets import WorkerTarget
from everbeat.core.tasks import Origin, TaskState
from everbeat.core.ticks import Outcome, SkipReason
from everbeat.services.ids import new_ids
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest
from tests.factories import (
    NOW,
    OTHER_TENANT,
    claim,
    firing_of,
    insert,
    ledger,
    make_schedule,
    make_task,
    minutes,
    own_all_partitions,
    seconds,
)

NODE = UUID(int=1)


def a_pause(queue: str | None = "default", tenant_id: UUID | None = DEFAULT_TENANT, **more: Any) -> Pause:
    return Pause(id=new_ids(1)[0], tenant_id=tenant_id, queue=queue, paused_by="key test", since_at=NOW, **more)


SCOPES = [("default", DEFAULT_TENANT), (None, DEFAULT_TENANT), (None, None)]


async def test_pause_write_stores_who_why_and_until_when(store: Store) -> None:
    written = await store.pause_write(a_pause(note="deploy", until_at=NOW + minutes(5)), now=NOW)
    assert (written.paused_by, written.note, written.since_at) == ("key test", "deploy", NOW)
    assert written.until_at == NOW + minutes(5)
    assert written.scope is PauseScope.QUEUE
    assert await store.pause_list(DEFAULT_TENANT, now=NOW) == [written]


async def test_pause_write_changes_an_active_pause_and_keeps_its_beginning(store: Store) -> None:
    first = await store.pause_write(a_pause(note="one"), now=NOW)
    second = await store.pause_write(a_pause(note="two", until_at=NOW + minutes(9)), now=NOW + minutes(1))
    assert (second.id, second.since_at, second.note, second.until_at) == (first.id, NOW, "two", NOW + minutes(9))
    assert len(await store.pause_list(None, now=NOW + minutes(1))) == 1


async def test_pause_write_after_an_expired_pause_begins_another_one(store: Store) -> None:
    first = await store.pause_write(a_pause(until_at=NOW + minutes(1)), now=NOW)
    second = await store.pause_write(a_pause(), now=NOW + minutes(2))
    assert (second.id != first.id, second.since_at) == (True, NOW + minutes(2))
    (expired,) = await store.pause_find(DEFAULT_TENANT, "default", NOW)
    assert (expired.id, expired.ended_at, expired.ended_by) == (first.id, NOW + minutes(1), None)


@pytest.mark.parametrize(("queue", "tenant_id"), SCOPES)
async def test_pause_end_ends_only_the_pause_of_that_scope(store: Store, queue: str | None, tenant_id: UUID | None) -> None:
    for one in SCOPES:
        await store.pause_write(a_pause(*one), now=NOW)
    (ended,) = await store.pause_end(tenant_id, queue, "key other", now=NOW + minutes(1))
    assert (ended.queue, ended.tenant_id, ended.ended_at, ended.ended_by) == (queue, tenant_id, NOW + minutes(1), "key other")
    left = await store.pause_list(None, now=NOW + minutes(1))
    assert {(one.queue, one.tenant_id) for one in left} == set(SCOPES) - {(queue, tenant_id)}
    assert await store.pause_end(tenant_id, queue, "key other", now=NOW + minutes(2)) == []


async def test_pause_list_shows_a_tenant_its_own_pauses_and_those_of_everything(store: Store) -> None:
    for one in (*SCOPES, ("default", OTHER_TENANT)):
        await store.pause_write(a_pause(*one), now=NOW)
    shown = {(one.queue, one.tenant_id) for one in await store.pause_list(OTHER_TENANT, now=NOW)}
    assert shown == {("default", OTHER_TENANT), (None, None)}
    assert len(await store.pause_list(None, now=NOW)) == 4


async def test_pause_find_returns_the_pauses_that_applied_at_a_time(store: Store) -> None:
    await store.pause_write(a_pause(), now=NOW)
    await store.pause_end(DEFAULT_TENANT, "default", "x", now=NOW + minutes(1))
    await store.pause_write(a_pause(None, None), now=NOW + minutes(2))

    async def scope_at(after: float, queue: str = "default", tenant_id: UUID = DEFAULT_TENANT) -> PauseScope | None:
        at = NOW + minutes(after)
        found = pause_of(await store.pause_find(tenant_id, queue, at), tenant_id, queue, at)
        return None if found is None else found.scope

    assert await scope_at(0.5) is PauseScope.QUEUE
    assert await scope_at(0.5, "mail") is None
    assert await scope_at(0.5, tenant_id=OTHER_TENANT) is None
    assert await scope_at(1.5) is None
    assert await scope_at(3, tenant_id=OTHER_TENANT) is PauseScope.ALL


async def test_pause_prune_deletes_pauses_that_ended_long_ago(store: Store) -> None:
    await store.pause_write(a_pause("old"), now=NOW)
    await store.pause_end(DEFAULT_TENANT, "old", "x", now=NOW)
    await store.pause_write(a_pause("active"), now=NOW)
    assert await store.pause_prune(ended_seconds=60, limit=10, now=NOW + seconds(59)) == 0
    assert await store.pause_prune(ended_seconds=60, limit=10, now=NOW + seconds(61)) == 1
    assert [one.queue for one in await store.pause_list(None, now=NOW + minutes(9))] == ["active"]


@pytest.mark.parametrize(("queue", "tenant_id"), SCOPES)
async def test_task_claim_takes_nothing_from_a_paused_queue(store: Store, queue: str | None, tenant_id: UUID | None) -> None:
    await store.task_submit([make_task(), make_task("other")], now=NOW)
    await store.pause_write(a_pause(queue, tenant_id, until_at=NOW + minutes(1)), now=NOW)
    assert await claim(store, limit=10, now=NOW + seconds(59)) == []
    assert len(await claim(store, limit=10, now=NOW + seconds(60))) == 2


async def test_task_claim_takes_the_tasks_of_other_queues_and_tenants(store: Store) -> None:
    await store.pause_write(a_pause("default"), now=NOW)
    await store.task_submit([make_task(), make_task(queue="mail"), make_task(tenant_id=OTHER_TENANT)], now=NOW)
    assert len(await claim(store, "mail", now=NOW)) == 1
    claimed = await claim(store, "default", "mail", limit=10, tenant_id=OTHER_TENANT, now=NOW)
    assert [task.tenant_id for task in claimed] == [OTHER_TENANT]


async def test_task_claim_triggered_takes_only_tasks_of_manual_triggers_from_paused_queues(store: Store) -> None:
    triggered = make_task(origin=Origin.TRIGGER)
    not_paused = make_task(origin=Origin.TRIGGER, queue="mail")
    await store.task_submit([make_task(), triggered, not_paused], now=NOW)
    request = ClaimRequest("w1", 10, 30)

    async def take(types: list[str] | None = None, **more: Any) -> list[UUID]:
        result = await store.task_claim_triggered(DEFAULT_TENANT, ["default", "mail"], types, request, now=NOW, **more)
        return [task.id for task in result.tasks[0]]

    assert await take() == []
    await store.pause_write(a_pause("default"), now=NOW)
    assert await take(["another"]) == []
    assert await take([triggered.type]) == [triggered.id]
    assert await take() == []
    (running,) = await store.task_find(DEFAULT_TENANT, [triggered.id])
    assert (running.state, running.attempt, running.worker) == (TaskState.RUNNING, 1, "w1")
    assert [task.id for task in await claim(store, "default", "mail", limit=10, now=NOW)] == [not_paused.id]


async def test_task_submit_hands_no_task_of_a_paused_queue_over(store: Store) -> None:
    await store.pause_write(a_pause("default"), now=NOW)
    leased = make_task()._replace(lease_owner="w1", lease_seconds=30.0, total_seconds=600.0)
    with pytest.raises(HandoffPaused):
        await store.task_submit([make_task(queue="mail"), leased], now=NOW)
    assert await store.task_queue_list(DEFAULT_TENANT) == []
    other = make_task(queue="mail")._replace(lease_owner="w1", lease_seconds=30.0, total_seconds=600.0)
    await store.task_submit([make_task(), other], now=NOW)
    assert [(one.queue, one.ready, one.running) for one in await store.task_queue_list(DEFAULT_TENANT)] == [
        ("default", 1, 0),
        ("mail", 0, 1),
    ]


@pytest.mark.parametrize(("queue", "tenant_id"), SCOPES)
async def test_tick_fire_skips_the_ticks_of_a_paused_queue(store: Store, queue: str | None, tenant_id: UUID | None) -> None:
    schedule = make_schedule(target=WorkerTarget(type="work", queue="default"))
    await insert(store, schedule)
    await own_all_partitions(store, NODE)
    await store.pause_write(a_pause(queue, tenant_id), now=NOW)
    result = await store.tick_fire(NODE, [firing_of(schedule)], now=NOW)
    assert [(one.outcome, one.reason) for one in result.fired] == [(Outcome.SKIPPED, SkipReason.PAUSED)]
    assert result.changes == []
    (row,) = await ledger(store, schedule.id)
    assert (row.outcome, row.reason, row.task_id) == (Outcome.SKIPPED, SkipReason.PAUSED, None)
    assert await store.task_depths() == []

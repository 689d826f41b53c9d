"""Pauses end to end on both stores: ticks, claims, direct handoff, manual triggers, the audit and why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.access import LOCAL_CALLER
from everbeat.core.errors import InvalidInput
from everbeat.core.explain import Explanation, Verdict
from everbeat.core.protocol import LeaseClaimRequest, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.pauses import PauseService
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, SteppedNode, ledger, ledger_summary, minutes, seconds
from tests.services.polling import PollingNode, ids_of, response

WORK = {"kind": "worker", "type": "work", "queue": "default"}
CLAIM = LeaseClaimRequest(worker="w1", queues=["default"], max=10)
SCOPES = pytest.mark.parametrize(("tenant_id", "queue"), [(DEFAULT_TENANT, "default"), (DEFAULT_TENANT, None), (None, None)])


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


@pytest.fixture
async def polling(store: Store) -> AsyncIterator[PollingNode]:
    polling = PollingNode(store)
    yield polling
    await polling.close()


def pauses_of(node: SteppedNode) -> PauseService:
    return node.engine.pauses


async def pause(node: SteppedNode, tenant_id: UUID | None = DEFAULT_TENANT, queue: str | None = None, **more: Any) -> None:
    await pauses_of(node).pause(tenant_id, queue, **{"by": LOCAL_CALLER, "now": node.now, **more})


async def resume(node: SteppedNode, tenant_id: UUID | None = DEFAULT_TENANT, queue: str | None = None) -> None:
    assert len(await pauses_of(node).resume(tenant_id, queue, by=LOCAL_CALLER, now=node.now)) == 1


async def why(node: SteppedNode, at: datetime) -> Explanation:
    return await node.engine.explainer.explain(DEFAULT_TENANT, "job", at, now=node.now)


async def submit(node: SteppedNode, **more: Any) -> None:
    await node.tasks.submit_batch(DEFAULT_TENANT, [TaskInput(type="work", **more)], now=node.now)


@SCOPES
async def test_ticks_of_a_pause_are_in_the_ledger_and_a_resume_restores_the_rest(
    node: SteppedNode, tenant_id: UUID | None, queue: str | None
) -> None:
    before = await node.put(overlap="allow", max_concurrent=100)
    await node.run(NOW + minutes(1), by_seconds=30)
    await pause(node, tenant_id, queue)
    await node.run(NOW + minutes(3), by_seconds=30)
    await resume(node, tenant_id, queue)
    await node.run(NOW + minutes(4), by_seconds=30)
    assert ledger_summary(await ledger(node.store, before.id)) == [
        (60, "fired", 1),
        (120, "paused", 1),
        (180, "paused", 1),
        (240, "fired", 1),
    ]
    after = await node.schedules.get(DEFAULT_TENANT, "job")
    assert (after.status, after.revision) == (before.status, before.revision)
    count = await node.count(to=node.now + seconds(1))
    assert (count.missing, count.doubled, count.fired, count.skipped) == (0, 0, 2, {"paused": 2})


@SCOPES
async def test_tasks_are_accepted_and_wait_until_the_pause_ends(
    node: SteppedNode, tenant_id: UUID | None, queue: str | None
) -> None:
    await submit(node)
    await pause(node, tenant_id, queue, until=NOW + minutes(1))
    await submit(node)
    assert await node.leases.claim(DEFAULT_TENANT, CLAIM, now=NOW + seconds(59)) == []
    assert len(await node.leases.claim(DEFAULT_TENANT, CLAIM, now=NOW + minutes(1))) == 2


async def test_a_pause_of_a_tenant_does_not_affect_another_one(node: SteppedNode) -> None:
    await pause(node)
    await node.tasks.submit_batch(OTHER_TENANT, [TaskInput(type="work")], now=NOW)
    assert len(await node.leases.claim(OTHER_TENANT, CLAIM, now=NOW)) == 1


async def test_a_resume_of_everything_leaves_the_pause_of_a_queue(node: SteppedNode) -> None:
    await submit(node)
    await pause(node, DEFAULT_TENANT, "default")
    await pause(node, None)
    await resume(node, None)
    assert await node.leases.claim(DEFAULT_TENANT, CLAIM, now=NOW) == []
    await resume(node, DEFAULT_TENANT, "default")
    assert len(await node.leases.claim(DEFAULT_TENANT, CLAIM, now=NOW)) == 1


@SCOPES
async def test_a_manual_trigger_runs_during_a_pause(node: SteppedNode, tenant_id: UUID | None, queue: str | None) -> None:
    await node.put()
    await pause(node, tenant_id, queue)
    await submit(node)
    task = await node.backfill.trigger(DEFAULT_TENANT, "job", now=NOW)
    assert [one.id for one in await node.leases.claim(DEFAULT_TENANT, CLAIM, now=NOW)] == [task.id]
    assert await node.leases.claim(DEFAULT_TENANT, CLAIM, now=NOW) == []


async def test_an_end_in_the_past_is_refused(node: SteppedNode) -> None:
    with pytest.raises(InvalidInput, match="until: must be in the future"):
        await pause(node, until=NOW)


async def test_why_names_the_pause_who_began_it_and_until_when(node: SteppedNode) -> None:
    await node.put()
    await pause(node, DEFAULT_TENANT, "default", note="deploy", until=NOW + minutes(5))
    await node.run(NOW + minutes(2), by_seconds=30)
    past, ahead, later = [await why(node, NOW + minutes(number)) for number in (1, 3, 6)]
    assert (past.verdict, ahead.verdict, later.verdict) == (Verdict.SKIPPED, Verdict.WILL_SKIP, Verdict.UPCOMING)
    assert 'the queue "default" is paused by' in past.explanation
    facts = {one.fact: one.value for one in past.facts}
    assert (facts["paused"], facts["note"], facts["paused_until"]) == ("queue", "deploy", "2026-03-02T12:05:00.000000Z")
    await resume(node, DEFAULT_TENANT, "default")
    assert 'the queue "default" was paused by' in (await why(node, NOW + minutes(1))).explanation
    assert (await why(node, NOW + minutes(3))).verdict is Verdict.UPCOMING


# Long polls


async def test_a_waiting_worker_gets_no_task_of_a_paused_queue_and_all_after_the_resume(polling: PollingNode) -> None:
    poll = await polling.waiting_poll()
    pauses = pauses_of(polling.node)
    await pauses.pause(DEFAULT_TENANT, "default", by=LOCAL_CALLER)
    ids = await polling.submit_for_handoff()
    await polling.wait_for_claims()
    assert not poll.done()
    assert await polling.states(ids) == [("ready", 0)]
    await pauses.resume(DEFAULT_TENANT, "default", by=LOCAL_CALLER)
    assert [task.id for task in await response(poll)] == ids


async def test_a_handoff_that_races_with_a_pause_is_written_as_ready(
    polling: PollingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = await polling.waiting_poll()
    with monkeypatch.context() as patched:  # this node gets no notice of the pause
        patched.setattr(polling.store.inner, "publish", lambda _notice: None)
        await PauseService(polling.store.inner).pause(DEFAULT_TENANT, "default", by=LOCAL_CALLER)
    ids = await polling.submit_for_handoff()
    await polling.wait_for_claims()
    assert len(polling.store.writes) == 2
    assert not poll.done()
    assert await polling.states(ids) == [("ready", 0)]


async def test_a_manual_trigger_wakes_a_worker_that_waits_during_a_pause(polling: PollingNode) -> None:
    await polling.node.schedules.put(DEFAULT_TENANT, "job", {"name": "job", "cron": "0 0 1 1 *", "target": WORK})
    await pauses_of(polling.node).pause(DEFAULT_TENANT, by=LOCAL_CALLER)
    poll = await polling.waiting_poll()
    task = await polling.node.backfill.trigger(DEFAULT_TENANT, "job")
    assert [one.id for one in await response(poll)] == [task.id]
    assert await ids_of(polling.poll("next", wait=0)) == []

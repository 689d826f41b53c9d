"""Heartbeats: a lease goes on, is lost or is to be cancelled; progress and log lines ride on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from everbeat.core.protocol import Lease, LeaseHeartbeat, LeaseHeartbeatRequest, Progress
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from everbeat.store.values import HeartbeatWrite, RenewedLease
from tests.factories import NOW, OTHER_TENANT, SteppedNode, StoreOverride, minutes, seconds
from tests.services.workers import Worker, get, submit


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


@pytest.fixture
def worker(node: SteppedNode) -> Worker:
    return Worker(node)


async def texts(node: SteppedNode, id_: UUID, tenant_id: UUID = DEFAULT_TENANT) -> list[str]:
    return [line.text for line in await node.tasks.log(tenant_id, id_, after=None, limit=1000)]


async def test_a_heartbeat_renews_the_lease(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    assert task.lease_until == NOW + seconds(30)
    for number in range(1, 20):
        node.move_to(NOW + seconds(20 * number))
        response = await worker.beat(task)
        assert (response.id, response.status, response.lease_until) == (task.id, "ok", node.now + seconds(30))
    assert await worker.complete(task) == ["ok"]


async def test_a_lease_that_has_run_out_is_lost_although_nobody_else_has_it(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    node.move_to(NOW + seconds(30))
    response = await worker.beat(task)
    assert (response.status, response.lease_until) == ("lost", None)
    assert (await get(node, task)).lease_until == NOW + seconds(30), "nothing was changed"


async def test_a_lease_that_somebody_else_has_now_is_lost(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    old = await worker.claim_one()
    await node.reap(NOW + seconds(31))
    new = await worker.claim_one()
    assert (await worker.beat(old, fraction=0.9, log="from the grave")).status == "lost"
    assert (await worker.beat(new)).status == "ok"
    found = await get(node, new)
    assert (found.progress_fraction, await texts(node, new.id)) == (None, [])


@pytest.mark.parametrize("lease", [Lease(id=uuid4(), fence=1), Lease(id=UUID(int=0), fence=2**63 - 1)])
async def test_a_lease_that_never_was_is_lost(worker: Worker, lease: Lease) -> None:
    assert (await worker.beat(lease)).status == "lost"


async def test_a_lease_of_another_tenant_is_lost(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    assert (await Worker(node, tenant_id=OTHER_TENANT).beat(task, log="theirs")).status == "lost"
    assert await texts(node, task.id) == []


async def test_a_cancelled_task_is_told_and_its_lease_is_not_renewed(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    node.move_to(NOW + seconds(10))
    assert (await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)).cancel_requested
    for at in (11, 20, 29):
        node.move_to(NOW + seconds(at))
        response = await worker.beat(task)
        assert (response.status, response.lease_until) == ("cancel", NOW + seconds(30))
    await node.reap(NOW + seconds(30))
    assert (await worker.beat(task)).status == "lost"
    assert (await get(node, task)).state is TaskState.CANCELLED


async def test_progress_is_kept_and_what_is_not_said_stays(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    await worker.beat(task, fraction=0.25, message="fetching")
    await worker.beat(task, fraction=0.5)
    await worker.beat(task)
    found = await get(node, task)
    assert (found.progress_fraction, found.progress_message) == (0.5, "fetching")
    await worker.beat(task, message="writing")
    await worker.complete(task)
    found = await get(node, task)
    assert (found.state, found.progress_fraction, found.progress_message) == (TaskState.COMPLETED, 0.5, "writing")


async def test_a_new_attempt_starts_without_progress(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    await worker.beat(task, fraction=0.9, message="nearly")
    await worker.fail(task, retry_in_seconds=0)
    again = await worker.claim_one()
    found = await get(node, again)
    assert (found.progress_fraction, found.progress_message) == (None, None)


async def test_log_lines_are_kept_with_their_attempt_and_worker(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    await worker.beat(task, log="one")
    node.move_to(NOW + seconds(5))
    await worker.beat(task, log="two\nthree")
    await worker.fail(task, retry_in_seconds=0)
    other = Worker(node, "other")
    again = await other.claim_one()
    await other.beat(again, log="four")
    await other.complete(again)
    lines = await node.tasks.log(DEFAULT_TENANT, task.id, after=None, limit=100)
    assert [(line.text, line.attempt, line.worker, line.at) for line in lines] == [
        ("one", 1, "worker", NOW),
        ("two\nthree", 1, "worker", NOW + seconds(5)),
        ("four", 2, "other", NOW + seconds(5)),
    ]
    assert [line.text for line in await node.tasks.log(DEFAULT_TENANT, task.id, after=lines[0].id, limit=1)] == ["two\nthree"]


async def test_a_log_without_end_is_cut_with_a_note(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    for _ in range(5):
        await worker.beat(task, log="x" * 400_000)
    kept = await texts(node, task.id)
    assert sum(map(len, kept)) < 1_050_000
    assert "cut" in kept[-1][-100:]
    assert (await worker.beat(task, log="more")).status == "ok"
    assert len(await texts(node, task.id)) == len(kept)


async def test_a_log_of_odd_characters_is_kept_and_the_beat_counts(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    assert (await worker.beat(task, log="a\x00b\u202e\U0001f600")).status == "ok"
    (text,) = await texts(node, task.id)
    assert text.startswith("a")
    assert text.endswith("b\u202e\U0001f600")


@pytest.mark.parametrize("odd", ["\x00", "\ud800", "\udfff\x00"])
async def test_text_that_no_database_can_hold_does_not_cost_the_lease(node: SteppedNode, worker: Worker, odd: str) -> None:
    """In process nothing decodes what a worker says; it must not fail the beats that are written with it."""
    await submit(node)
    task = await worker.claim_one()
    assert (await worker.beat(task, message=f"a{odd}b", log=f"c{odd}d")).status == "ok"
    message = (await get(node, task)).progress_message or ""
    (text,) = await texts(node, task.id)
    assert (message[0], message[-1], text[0], text[-1]) == tuple("abcd")


# Many at once


class CountingBeats(StoreOverride):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: list[Sequence[HeartbeatWrite]] = []

    async def task_heartbeat(self, beats: Sequence[HeartbeatWrite], **more: Any) -> list[RenewedLease]:
        self.calls.append(beats)
        beaten: list[RenewedLease] = await self.inner.task_heartbeat(beats, **more)
        return beaten


async def test_beats_that_repeat_a_lease_in_one_message_are_merged(node: SteppedNode) -> None:
    await submit(node)
    worker = Worker(node)
    task = await worker.claim_one()
    one = LeaseHeartbeat(id=task.id, fence=task.fence, progress=Progress(fraction=0.1, message="early"), log="one")
    two = LeaseHeartbeat(id=task.id, fence=task.fence, progress=Progress(fraction=0.2), log="two")
    stale = LeaseHeartbeat(id=task.id, fence=task.fence + 1, progress=Progress(fraction=0.9), log="stale")
    heartbeat = LeaseHeartbeatRequest(worker="worker", leases=[one, two, one, stale])
    answers = await node.leases.heartbeat(DEFAULT_TENANT, heartbeat, now=node.now)
    assert [response.status for response in answers] == ["ok", "ok", "ok", "lost"]
    found = await get(node, task)
    assert (found.progress_fraction, found.progress_message) == (0.1, "early")
    assert "\n".join(await texts(node, task.id)) == "one\ntwo\none"


async def test_an_empty_heartbeat_is_answered_without_the_database(store: Store) -> None:
    counting = CountingBeats(store)
    node = SteppedNode(counting)
    assert await node.leases.heartbeat(DEFAULT_TENANT, LeaseHeartbeatRequest(worker="worker", leases=[]), now=NOW) == []
    assert counting.calls == []


async def live_lease(node: SteppedNode, name: str, *, tenant_id: UUID = DEFAULT_TENANT) -> Lease:
    """A lease that runs by the database's own clock, as group commit has it."""
    node.move_to(await node.store.clock())
    await submit(node, queue=name, tenant_id=tenant_id)
    task = await Worker(node, tenant_id=tenant_id).claim_one(queues=[name], lease_seconds=300)
    return Lease(id=task.id, fence=task.fence)


def beat_of(lease: Lease, **more: Any) -> LeaseHeartbeatRequest:
    return LeaseHeartbeatRequest(worker="worker", leases=[LeaseHeartbeat(id=lease.id, fence=lease.fence, **more)])


async def test_beats_of_many_workers_are_written_together(store: Store) -> None:
    counting = CountingBeats(store)
    node = SteppedNode(counting)
    leases = [await live_lease(node, f"queue-{number}") for number in range(20)]
    answers = await asyncio.gather(
        *(node.leases.heartbeat(DEFAULT_TENANT, beat_of(lease, log=f"line {place}")) for place, lease in enumerate(leases))
    )
    assert [(one.id, one.status) for (one,) in answers] == [(lease.id, "ok") for lease in leases]
    assert len(counting.calls) <= 2
    for place, lease in enumerate(leases):
        assert await texts(node, lease.id) == [f"line {place}"]


async def test_another_tenant_that_names_the_same_lease_at_once_gets_and_changes_nothing(store: Store) -> None:
    """Their beats may be written together with ours: what they say must neither cost the lease nor get into the log."""
    node = SteppedNode(store)
    lease, first = await live_lease(node, "queue"), await live_lease(node, "first")
    for order in ((DEFAULT_TENANT, OTHER_TENANT), (OTHER_TENANT, DEFAULT_TENANT)):
        answers = await asyncio.gather(
            node.leases.heartbeat(DEFAULT_TENANT, beat_of(first)),  # keeps the others waiting, so that they go together
            *(node.leases.heartbeat(tenant, beat_of(lease, log=str(tenant), progress=_said(tenant))) for tenant in order),
        )
        said = {tenant: response[0].status for tenant, response in zip(order, answers[1:], strict=True)}
        assert said == {DEFAULT_TENANT: "ok", OTHER_TENANT: "lost"}
    assert set(await texts(node, lease.id)) == {str(DEFAULT_TENANT)}
    (found,) = await store.task_find(DEFAULT_TENANT, [lease.id])
    assert found.progress_message == str(DEFAULT_TENANT)


def _said(tenant: UUID) -> Progress:
    return Progress(message=str(tenant))


async def test_a_stale_beat_beside_a_live_one_of_the_same_task_changes_nothing(store: Store) -> None:
    node = SteppedNode(store)
    live, first = await live_lease(node, "queue"), await live_lease(node, "first")
    stale = Lease(id=live.id, fence=live.fence + 7)
    for order in ((live, stale), (stale, live)):
        answers = await asyncio.gather(
            node.leases.heartbeat(DEFAULT_TENANT, beat_of(first)),
            *(node.leases.heartbeat(DEFAULT_TENANT, beat_of(lease, log=f"fence {lease.fence}")) for lease in order),
        )
        assert [response[0].status for response in answers[1:]] == ["ok" if lease is live else "lost" for lease in order]
    assert set(await texts(node, live.id)) == {f"fence {live.fence}"}


# Time


async def test_heartbeats_for_ever_do_not_outlast_the_timeout(node: SteppedNode, worker: Worker) -> None:
    await submit(node, timeout_seconds=100, max_attempts=1)
    task = await worker.claim_one()
    said = []
    for number in range(1, 10):
        node.move_to(NOW + seconds(20 * number))
        said.append((await worker.beat(task)).status)
    assert said == ["ok"] * 4 + ["lost"] * 5
    await node.reap()
    assert (await get(node, task)).state is TaskState.DEAD


async def test_a_heartbeat_never_promises_more_than_the_deadline(node: SteppedNode, worker: Worker) -> None:
    await submit(node, timeout_seconds=100)
    task = await worker.claim_one(lease_seconds=60)
    node.move_to(NOW + seconds(55))
    assert (await worker.beat(task)).lease_until == NOW + seconds(100)
    assert (await get(node, task)).lease_until == NOW + seconds(100)


async def test_a_heartbeat_after_the_end_is_lost(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    await worker.complete(task)
    node.move_to(NOW + minutes(1))
    assert (await worker.beat(task, log="late")).status == "lost"
    assert await texts(node, task.id) == []

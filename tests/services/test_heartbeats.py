"""Heartbeats: a lease is renewed, lost or to be cancelled; heartbeats carry progress and log lines."""

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
        response = await worker.heartbeat(task)
        assert (response.id, response.status, response.lease_until) == (task.id, "ok", node.now + seconds(30))
    assert await worker.complete(task) == ["ok"]


async def test_an_expired_lease_is_lost_before_another_worker_claims_the_task(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    node.move_to(NOW + seconds(30))
    response = await worker.heartbeat(task)
    assert (response.status, response.lease_until) == ("lost", None)
    assert (await get(node, task)).lease_until == NOW + seconds(30), "nothing was changed"


async def test_a_lease_is_lost_after_another_worker_has_claimed_the_task(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    old = await worker.claim_one()
    await node.reap(NOW + seconds(31))
    new = await worker.claim_one()
    assert (await worker.heartbeat(old, fraction=0.9, log="late")).status == "lost"
    assert (await worker.heartbeat(new)).status == "ok"
    found = await get(node, new)
    assert (found.progress_fraction, await texts(node, new.id)) == (None, [])


@pytest.mark.parametrize("lease", [Lease(id=uuid4(), fence=1), Lease(id=UUID(int=0), fence=2**63 - 1)])
async def test_an_unknown_lease_is_lost(worker: Worker, lease: Lease) -> None:
    assert (await worker.heartbeat(lease)).status == "lost"


async def test_a_lease_of_another_tenant_is_lost(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    assert (await Worker(node, tenant_id=OTHER_TENANT).heartbeat(task, log="theirs")).status == "lost"
    assert await texts(node, task.id) == []


async def test_the_heartbeat_of_a_cancelled_task_reports_it_and_does_not_renew(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    node.move_to(NOW + seconds(10))
    assert (await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)).cancel_requested
    for at in (11, 20, 29):
        node.move_to(NOW + seconds(at))
        response = await worker.heartbeat(task)
        assert (response.status, response.lease_until) == ("cancel", NOW + seconds(30))
    await node.reap(NOW + seconds(30))
    assert (await worker.heartbeat(task)).status == "lost"
    assert (await get(node, task)).state is TaskState.CANCELLED


async def test_progress_is_kept_until_a_heartbeat_changes_it(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    await worker.heartbeat(task, fraction=0.25, message="fetching")
    await worker.heartbeat(task, fraction=0.5)
    await worker.heartbeat(task)
    found = await get(node, task)
    assert (found.progress_fraction, found.progress_message) == (0.5, "fetching")
    await worker.heartbeat(task, message="writing")
    await worker.complete(task)
    found = await get(node, task)
    assert (found.state, found.progress_fraction, found.progress_message) == (TaskState.COMPLETED, 0.5, "writing")


async def test_a_new_attempt_starts_without_progress(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    await worker.heartbeat(task, fraction=0.9, message="nearly")
    await worker.fail(task, retry_in_seconds=0)
    again = await worker.claim_one()
    found = await get(node, again)
    assert (found.progress_fraction, found.progress_message) == (None, None)


async def test_log_lines_are_kept_with_their_attempt_and_worker(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    await worker.heartbeat(task, log="one")
    node.move_to(NOW + seconds(5))
    await worker.heartbeat(task, log="two\nthree")
    await worker.fail(task, retry_in_seconds=0)
    other = Worker(node, "other")
    again = await other.claim_one()
    await other.heartbeat(again, log="four")
    await other.complete(again)
    lines = await node.tasks.log(DEFAULT_TENANT, task.id, after=None, limit=100)
    assert [(line.text, line.attempt, line.worker, line.at) for line in lines] == [
        ("one", 1, "worker", NOW),
        ("two\nthree", 1, "worker", NOW + seconds(5)),
        ("four", 2, "other", NOW + seconds(5)),
    ]
    assert [line.text for line in await node.tasks.log(DEFAULT_TENANT, task.id, after=lines[0].id, limit=1)] == ["two\nthree"]


async def test_a_long_log_is_truncated_with_a_note(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    for _ in range(5):
        await worker.heartbeat(task, log="x" * 400_000)
    kept = await texts(node, task.id)
    assert sum(map(len, kept)) < 1_050_000
    assert "truncated" in kept[-1][-100:]
    assert (await worker.heartbeat(task, log="more")).status == "ok"
    assert len(await texts(node, task.id)) == len(kept)


async def test_a_log_with_unusual_characters_is_kept_and_the_lease_renewed(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    assert (await worker.heartbeat(task, log="a\x00b\u202e\U0001f600")).status == "ok"
    (text,) = await texts(node, task.id)
    assert text.startswith("a")
    assert text.endswith("b\u202e\U0001f600")


@pytest.mark.parametrize("invalid", ["\x00", "\ud800", "\udfff\x00"])
async def test_text_that_no_database_can_store_does_not_lose_the_lease(node: SteppedNode, worker: Worker, invalid: str) -> None:
    """In process, no decoder checks the text of a worker. It must not make the heartbeats of the same group commit fail."""
    await submit(node)
    task = await worker.claim_one()
    assert (await worker.heartbeat(task, message=f"a{invalid}b", log=f"c{invalid}d")).status == "ok"
    message = (await get(node, task)).progress_message or ""
    (text,) = await texts(node, task.id)
    assert (message[0], message[-1], text[0], text[-1]) == tuple("abcd")


# Concurrent heartbeats


class CountingStore(StoreOverride):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: list[Sequence[HeartbeatWrite]] = []

    async def task_heartbeat(self, heartbeats: Sequence[HeartbeatWrite], **more: Any) -> list[RenewedLease]:
        self.calls.append(heartbeats)
        renewed: list[RenewedLease] = await self.inner.task_heartbeat(heartbeats, **more)
        return renewed


async def test_heartbeats_that_repeat_a_lease_in_one_request_are_merged(node: SteppedNode) -> None:
    await submit(node)
    worker = Worker(node)
    task = await worker.claim_one()
    one = LeaseHeartbeat(id=task.id, fence=task.fence, progress=Progress(fraction=0.1, message="early"), log="one")
    two = LeaseHeartbeat(id=task.id, fence=task.fence, progress=Progress(fraction=0.2), log="two")
    stale = LeaseHeartbeat(id=task.id, fence=task.fence + 1, progress=Progress(fraction=0.9), log="stale")
    heartbeat = LeaseHeartbeatRequest(worker="worker", leases=[one, two, one, stale])
    responses = await node.leases.heartbeat(DEFAULT_TENANT, heartbeat, now=node.now)
    assert [response.status for response in responses] == ["ok", "ok", "ok", "lost"]
    found = await get(node, task)
    assert (found.progress_fraction, found.progress_message) == (0.1, "early")
    assert "\n".join(await texts(node, task.id)) == "one\ntwo\none"


async def test_an_empty_heartbeat_needs_no_query(store: Store) -> None:
    counting = CountingStore(store)
    node = SteppedNode(counting)
    assert await node.leases.heartbeat(DEFAULT_TENANT, LeaseHeartbeatRequest(worker="worker", leases=[]), now=NOW) == []
    assert counting.calls == []


async def live_lease(node: SteppedNode, name: str, *, tenant_id: UUID = DEFAULT_TENANT) -> Lease:
    """Return a lease that is valid by the database's own clock, which group commit uses."""
    node.move_to(await node.store.clock())
    await submit(node, queue=name, tenant_id=tenant_id)
    task = await Worker(node, tenant_id=tenant_id).claim_one(queues=[name], lease_seconds=300)
    return Lease(id=task.id, fence=task.fence)


def heartbeat_of(lease: Lease, **more: Any) -> LeaseHeartbeatRequest:
    return LeaseHeartbeatRequest(worker="worker", leases=[LeaseHeartbeat(id=lease.id, fence=lease.fence, **more)])


async def test_heartbeats_of_many_workers_are_written_together(store: Store) -> None:
    counting = CountingStore(store)
    node = SteppedNode(counting)
    leases = [await live_lease(node, f"queue-{number}") for number in range(20)]
    responses = await asyncio.gather(
        *(
            node.leases.heartbeat(DEFAULT_TENANT, heartbeat_of(lease, log=f"line {number}"))
            for number, lease in enumerate(leases)
        )
    )
    assert [(one.id, one.status) for (one,) in responses] == [(lease.id, "ok") for lease in leases]
    assert len(counting.calls) <= 2
    for number, lease in enumerate(leases):
        assert await texts(node, lease.id) == [f"line {number}"]


async def test_a_concurrent_heartbeat_of_another_tenant_changes_nothing(store: Store) -> None:
    """Both heartbeats may be in one group commit. That of the other tenant must neither lose the lease nor write to the log."""
    node = SteppedNode(store)
    lease, first = await live_lease(node, "queue"), await live_lease(node, "first")
    for order in ((DEFAULT_TENANT, OTHER_TENANT), (OTHER_TENANT, DEFAULT_TENANT)):
        responses = await asyncio.gather(
            node.leases.heartbeat(DEFAULT_TENANT, heartbeat_of(first)),  # delays the others, so that they are written together
            *(
                node.leases.heartbeat(tenant, heartbeat_of(lease, log=str(tenant), progress=_progress_of(tenant)))
                for tenant in order
            ),
        )
        statuses = {tenant: response[0].status for tenant, response in zip(order, responses[1:], strict=True)}
        assert statuses == {DEFAULT_TENANT: "ok", OTHER_TENANT: "lost"}
    assert set(await texts(node, lease.id)) == {str(DEFAULT_TENANT)}
    (found,) = await store.task_find(DEFAULT_TENANT, [lease.id])
    assert found.progress_message == str(DEFAULT_TENANT)


def _progress_of(tenant: UUID) -> Progress:
    return Progress(message=str(tenant))


async def test_a_stale_heartbeat_concurrent_with_a_valid_one_changes_nothing(store: Store) -> None:
    node = SteppedNode(store)
    live, first = await live_lease(node, "queue"), await live_lease(node, "first")
    stale = Lease(id=live.id, fence=live.fence + 7)
    for order in ((live, stale), (stale, live)):
        responses = await asyncio.gather(
            node.leases.heartbeat(DEFAULT_TENANT, heartbeat_of(first)),
            *(node.leases.heartbeat(DEFAULT_TENANT, heartbeat_of(lease, log=f"fence {lease.fence}")) for lease in order),
        )
        assert [response[0].status for response in responses[1:]] == ["ok" if lease is live else "lost" for lease in order]
    assert set(await texts(node, live.id)) == {f"fence {live.fence}"}


# Time


async def test_heartbeats_do_not_extend_a_lease_beyond_the_timeout(node: SteppedNode, worker: Worker) -> None:
    await submit(node, timeout_seconds=100, max_attempts=1)
    task = await worker.claim_one()
    statuses = []
    for number in range(1, 10):
        node.move_to(NOW + seconds(20 * number))
        statuses.append((await worker.heartbeat(task)).status)
    assert statuses == ["ok"] * 4 + ["lost"] * 5
    await node.reap()
    assert (await get(node, task)).state is TaskState.DEAD


async def test_a_heartbeat_never_renews_beyond_the_deadline(node: SteppedNode, worker: Worker) -> None:
    await submit(node, timeout_seconds=100)
    task = await worker.claim_one(lease_seconds=60)
    node.move_to(NOW + seconds(55))
    assert (await worker.heartbeat(task)).lease_until == NOW + seconds(100)
    assert (await get(node, task)).lease_until == NOW + seconds(100)


async def test_a_heartbeat_after_the_end_is_lost(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    await worker.complete(task)
    node.move_to(NOW + minutes(1))
    assert (await worker.heartbeat(task, log="late")).status == "lost"
    assert await texts(node, task.id) == []

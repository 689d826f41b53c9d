"""Large payloads on their way: what a claim does with a blob store that is slow, and with a worker that goes away meanwhile."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.errors import BlobsUnavailable
from everbeat.core.protocol import LeaseClaimRequest
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask, ClaimedTaskWithoutPayload, TaskState
from everbeat.engine import Engine
from everbeat.services.blobs import BlobStore
from everbeat.services.payloads import LargePayloads
from everbeat.store.base import Store
from tests.factories import claim, make_task

MIB = 1024 * 1024


class Slow(BlobStore):
    """Keeps nothing; a payload comes when it may, and one of them never gets in."""

    def __init__(self, refused_after: int = 10_000) -> None:
        super().__init__("file:///nowhere")
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Event()
        self.kept: set[str] = set()
        self.deleted: list[str] = []
        self.refused_after = refused_after

    async def put(self, tenant_id: UUID, payload: bytes) -> str:
        if len(self.kept) >= self.refused_after:
            raise BlobsUnavailable("no")
        ref = ref_of(len(self.kept), len(payload))
        self.kept.add(ref)
        return ref

    async def get(self, ref: str) -> bytes:
        self.asked.set()
        await self.may_answer.wait()
        return b'"here"'

    async def delete(self, refs: object) -> None:
        self.deleted += refs if isinstance(refs, list) else []


def ref_of(number: int, size: int) -> str:
    return f"{DEFAULT_TENANT}/2026-01/{UUID(int=number)}-{size}"


async def claimed(store: Store, *sizes: int, lease_seconds: float = 30) -> list[ClaimedTask]:
    refs = [ref_of(number, size) for number, size in enumerate(sizes)]
    await store.task_submit([make_task(payload="null", payload_ref=ref) for ref in refs])
    return await claim(store, now=await store.clock(), lease_seconds=lease_seconds)


async def test_half_of_a_lease_is_left_whatever_the_blob_store_does(store: Store) -> None:
    tasks = await claimed(store, 70_000, lease_seconds=0.2)
    filled = await asyncio.wait_for(LargePayloads(Slow()).fill(tasks), 5)
    assert (filled.tasks, [task.id for task in filled.away]) == ([], [tasks[0].id])


async def test_the_first_fits_and_the_rest_as_far_as_the_budget_goes(store: Store) -> None:
    blobs = Slow()
    blobs.may_answer.set()
    tasks = await claimed(store, 9 * MIB, 2 * MIB, 1 * MIB)
    filled = await LargePayloads(blobs, max_bytes=8 * MIB).fill(tasks)
    assert [task.id for task in filled.tasks] == [tasks[0].id]
    assert [type(task) for task in filled.tasks] == [ClaimedTask]
    assert [task.id for task in filled.over] == [task.id for task in tasks[1:]]


async def test_a_worker_that_goes_away_while_it_is_served_loses_nothing(store: Store) -> None:
    blobs = Slow()
    leases = Engine(store, DatabaseClock(), Settings(), blobs=blobs).leases
    task = make_task(payload="null", payload_ref=ref_of(0, 70_000))
    await store.task_submit([task])
    asking = asyncio.create_task(leases.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w", queues=["default"])))
    await blobs.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.attempt) == (TaskState.READY, 0)
    ((again,),) = [await claim(store, now=await store.clock())]
    assert isinstance(again, ClaimedTaskWithoutPayload)


async def test_of_tasks_that_are_not_all_kept_none_is(store: Store) -> None:
    blobs = Slow(refused_after=2)
    tasks = [make_task(payload=f'"{"x" * 70_000}"') for _ in range(5)]
    with pytest.raises(BlobsUnavailable):
        await LargePayloads(blobs).keep(tasks)
    assert sorted(blobs.deleted) == sorted(blobs.kept)

"""Large payloads in claims and submits: a slow blob store, the size budget, cancelled polls, and failed writes."""

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


class SlowBlobStore(BlobStore):
    """Stores nothing. A payload can be read after `may_respond` is set, and writes fail after a given number."""

    def __init__(self, refused_after: int = 10_000) -> None:
        super().__init__("file:///nowhere")
        self.may_respond = asyncio.Event()
        self.reading = asyncio.Event()
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
        self.reading.set()
        await self.may_respond.wait()
        return b'"here"'

    async def delete(self, refs: object) -> None:
        self.deleted += refs if isinstance(refs, list) else []


def ref_of(number: int, size: int) -> str:
    return f"{DEFAULT_TENANT}/2026-01/{UUID(int=number)}-{size}"


async def claimed(store: Store, *sizes: int, lease_seconds: float = 30) -> list[ClaimedTask]:
    refs = [ref_of(number, size) for number, size in enumerate(sizes)]
    await store.task_submit([make_task(payload=b"null", payload_ref=ref) for ref in refs])
    return await claim(store, now=await store.clock(), lease_seconds=lease_seconds)


async def test_loading_payloads_takes_at_most_half_of_a_lease(store: Store) -> None:
    tasks = await claimed(store, 70_000, lease_seconds=0.2)
    filled = await asyncio.wait_for(LargePayloads(SlowBlobStore()).fill(tasks), 5)
    assert (filled.tasks, [task.id for task in filled.unavailable]) == ([], [tasks[0].id])


async def test_the_first_payload_is_always_loaded_and_the_rest_up_to_the_budget(store: Store) -> None:
    blobs = SlowBlobStore()
    blobs.may_respond.set()
    tasks = await claimed(store, 9 * MIB, 2 * MIB, 1 * MIB)
    filled = await LargePayloads(blobs, max_bytes=8 * MIB).fill(tasks)
    assert [task.id for task in filled.tasks] == [tasks[0].id]
    assert [type(task) for task in filled.tasks] == [ClaimedTask]
    assert [task.id for task in filled.postponed] == [task.id for task in tasks[1:]]


async def test_a_claim_cancelled_while_payloads_are_loaded_loses_no_task(store: Store) -> None:
    blobs = SlowBlobStore()
    leases = Engine(store, DatabaseClock(), Settings(), blobs=blobs).leases
    task = make_task(payload=b"null", payload_ref=ref_of(0, 70_000))
    await store.task_submit([task])
    claiming = asyncio.create_task(leases.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w", queues=["default"])))
    await blobs.reading.wait()
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.attempt) == (TaskState.READY, 0)
    ((again,),) = [await claim(store, now=await store.clock())]
    assert isinstance(again, ClaimedTaskWithoutPayload)


async def test_if_one_payload_cannot_be_written_none_is_kept(store: Store) -> None:
    blobs = SlowBlobStore(refused_after=2)
    tasks = [make_task(payload=b'"%b"' % (b"x" * 70_000)) for _ in range(5)]
    with pytest.raises(BlobsUnavailable):
        await LargePayloads(blobs).keep(tasks)
    assert sorted(blobs.deleted) == sorted(blobs.kept)

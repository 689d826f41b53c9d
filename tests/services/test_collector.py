"""The collector removes payloads that no row refers to: only old ones, after a second check, and only as part of the pruner."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from everbeat.core.errors import BlobsUnavailable
from everbeat.core.retention import RetentionPeriods
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.blobs import BlobBackend, BlobStore
from everbeat.services.events import Pruned
from everbeat.services.maintenance.collector import Collector
from everbeat.services.maintenance.pruner import Pruner
from everbeat.store.base import Store
from everbeat.store.values import LeaseRef
from tests.factories import SteppedNode, StoreOverride, claim, make_task

# The files get the time of the machine's clock. The tests advance the database's time from there.
START = datetime.now(UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore((tmp_path / "blobs").as_uri())


async def submit_large_task(store: Store, blobs: BlobStore) -> str:
    """Submit a ready task with a large payload, and return the payload's reference."""
    ref = await blobs.put(DEFAULT_TENANT, b"1")
    await store.task_submit([make_task(payload=b"null", payload_ref=ref)], now=START)
    return ref


async def list_refs(blobs: BlobStore) -> set[str]:
    return {blob.ref async for batch in blobs.batches() for blob in batch}


async def collect(collector: Collector, moment: datetime) -> int:
    total, has_more = 0, True
    while has_more:
        removed, has_more = await collector.collect(moment)
        total += removed
    return total


async def test_an_unused_payload_is_removed_after_a_day_and_a_second_check(store: Store, blobs: BlobStore) -> None:
    used, unused = await submit_large_task(store, blobs), await blobs.put(DEFAULT_TENANT, b"2")
    collector = Collector(store, blobs)
    for moment in (START + 0.9 * DAY, START + 1.1 * DAY):
        assert await collect(collector, moment) == 0
    assert await list_refs(blobs) == {used, unused}
    assert await collect(collector, START + 1.2 * DAY) == 1
    assert await list_refs(blobs) == {used}


async def test_a_payload_used_again_before_the_second_check_stays(store: Store, blobs: BlobStore) -> None:
    ref = await blobs.put(DEFAULT_TENANT, b"2")
    collector = Collector(store, blobs)
    await collect(collector, START + 2 * DAY)
    await store.task_submit([make_task(payload=b"null", payload_ref=ref)], now=START)
    assert await collect(collector, START + 3 * DAY) == 0
    assert await list_refs(blobs) == {ref}


async def test_a_complete_scan_is_followed_by_a_pause(store: Store, blobs: BlobStore) -> None:
    class CountingStore(StoreOverride):
        checks = 0

        async def blob_unused(self, refs: Sequence[str]) -> list[str]:
            self.checks += 1
            found: list[str] = await self.inner.blob_unused(refs)
            return found

    await submit_large_task(store, blobs)
    counting: Any = CountingStore(store)
    collector = Collector(counting, blobs)
    for moment in (START + 2 * DAY, START + 2 * DAY + HOUR / 2, START + 2 * DAY + HOUR):
        await collect(collector, moment)
    assert counting.checks == 2


async def test_the_scan_of_an_unavailable_blob_store_starts_again_later(store: Store, tmp_path: Path) -> None:
    class UnavailableBlobStore(BlobStore):
        is_unavailable = True

        @property
        def _backend(self) -> BlobBackend:
            if self.is_unavailable:
                raise OSError("unavailable")
            return super()._backend

    blobs = UnavailableBlobStore((tmp_path / "blobs").as_uri())
    blobs.is_unavailable = False
    await blobs.put(DEFAULT_TENANT, b"2")
    collector = Collector(store, blobs)
    blobs.is_unavailable = True
    with pytest.raises(BlobsUnavailable):
        await collector.collect(START + 2 * DAY)
    blobs.is_unavailable = False
    await collect(collector, START + 2 * DAY)
    assert await collect(collector, START + 3 * DAY) == 1


async def test_without_a_blob_store_there_is_nothing_to_do(store: Store) -> None:
    assert await Collector(store, BlobStore(None)).collect(START) == (0, False)


async def test_payloads_are_removed_with_the_retention_of_their_tasks(store: Store, blobs: BlobStore) -> None:
    node = SteppedNode(store)
    await node.renew()
    await submit_large_task(store, blobs)
    (task,) = await claim(store, now=START)
    await store.task_complete([(LeaseRef(DEFAULT_TENANT, task.id, task.fence), None)], now=START)
    pruner = Pruner(
        store, node.ownership, RetentionPeriods.of_days(30), collector=Collector(store, blobs), emit=node.events.append
    )
    for days in (2, 3, 65, 66):
        while await pruner.run_once(START + days * DAY):
            pass
        assert len(await list_refs(blobs)) == (0 if days == 66 else 1)
    assert Pruned("blobs", 1) in node.events_of(Pruned)

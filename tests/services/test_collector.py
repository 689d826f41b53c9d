"""The collector removes payloads that nothing refers to: old ones only, after a second look, and only as the pruner's part."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from everbeat.core.errors import BlobsUnavailable
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.blobs import BlobBackend, BlobStore
from everbeat.services.collector import Collector
from everbeat.services.events import Pruned
from everbeat.services.maintenance import Pruner
from everbeat.store.base import Store
from everbeat.store.values import LeaseRef
from tests.factories import SteppedNode, StoreOverride, claim, make_task

# Files are as old as the machine's clock says; the database's is moved on from there.
START = datetime.now(UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore((tmp_path / "blobs").as_uri())


async def keep(store: Store, blobs: BlobStore) -> str:
    """A task that waits, with a payload elsewhere."""
    ref = await blobs.put(DEFAULT_TENANT, b"1")
    await store.task_submit([make_task(payload="null", payload_ref=ref)], now=START)
    return ref


async def left(blobs: BlobStore) -> set[str]:
    return {blob.ref async for piece in blobs.batches() for blob in piece}


async def collect(collector: Collector, moment: datetime) -> int:
    total, has_more = 0, True
    while has_more:
        removed, has_more = await collector.collect(moment)
        total += removed
    return total


async def test_what_no_row_refers_to_goes_after_a_day_and_a_second_look(store: Store, blobs: BlobStore) -> None:
    used, unused = await keep(store, blobs), await blobs.put(DEFAULT_TENANT, b"2")
    collector = Collector(store, blobs)
    for moment in (START + 0.9 * DAY, START + 1.1 * DAY):
        assert await collect(collector, moment) == 0
    assert await left(blobs) == {used, unused}
    assert await collect(collector, START + 1.2 * DAY) == 1
    assert await left(blobs) == {used}


async def test_what_is_referred_to_again_before_the_second_look_stays(store: Store, blobs: BlobStore) -> None:
    ref = await blobs.put(DEFAULT_TENANT, b"2")
    collector = Collector(store, blobs)
    await collect(collector, START + 2 * DAY)
    await store.task_submit([make_task(payload="null", payload_ref=ref)], now=START)
    assert await collect(collector, START + 3 * DAY) == 0
    assert await left(blobs) == {ref}


async def test_a_look_through_all_is_followed_by_a_rest(store: Store, blobs: BlobStore) -> None:
    class Counted(StoreOverride):
        asked = 0

        async def blob_unused(self, refs: Sequence[str]) -> list[str]:
            self.asked += 1
            found: list[str] = await self.inner.blob_unused(refs)
            return found

    await keep(store, blobs)
    counted: Any = Counted(store)
    collector = Collector(counted, blobs)
    for moment in (START + 2 * DAY, START + 2 * DAY + HOUR / 2, START + 2 * DAY + HOUR):
        await collect(collector, moment)
    assert counted.asked == 2


async def test_a_blob_store_that_is_away_is_looked_through_from_the_start_later(store: Store, tmp_path: Path) -> None:
    class Away(BlobStore):
        is_away = True

        @property
        def _backend(self) -> BlobBackend:
            if self.is_away:
                raise OSError("unavailable")
            return super()._backend

    blobs = Away((tmp_path / "blobs").as_uri())
    blobs.is_away = False
    await blobs.put(DEFAULT_TENANT, b"2")
    collector = Collector(store, blobs)
    blobs.is_away = True
    with pytest.raises(BlobsUnavailable):
        await collector.collect(START + 2 * DAY)
    blobs.is_away = False
    await collect(collector, START + 2 * DAY)
    assert await collect(collector, START + 3 * DAY) == 1


async def test_without_a_blob_store_there_is_nothing_to_do(store: Store) -> None:
    assert await Collector(store, BlobStore(None)).collect(START) == (0, False)


async def test_payloads_go_with_the_retention_of_their_tasks(store: Store, blobs: BlobStore) -> None:
    node = SteppedNode(store)
    await node.renew()
    await keep(store, blobs)
    (task,) = await claim(store, now=START)
    await store.task_complete([(LeaseRef(DEFAULT_TENANT, task.id, task.fence), None)], now=START)
    pruner = Pruner(store, node.ownership, retention_days=30, collector=Collector(store, blobs), emit=node.events.append)
    for days in (2, 3, 65, 66):
        while await pruner.run_once(START + days * DAY):
            pass
        assert len(await left(blobs)) == (0 if days == 66 else 1)
    assert Pruned("blobs", 1) in node.events_of(Pruned)

"""The record of workers: what is written, when, and its limits; queues and the absence of workers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from everbeat.core.protocol import LeaseClaimRequest, LeaseHeartbeatRequest
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.workers import WorkerInfo, WorkerState, absence_of
from everbeat.services import workers
from everbeat.services.workers import QueueView, WorkerDirectory, WorkerRecorder
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, make_task, minutes, seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(store: Store, clock: Clock) -> WorkerRecorder:
    return WorkerRecorder(store, "node", monotonic=clock)


def claim_of(worker: str = "host:1", *queues: str, **more: Any) -> LeaseClaimRequest:
    return LeaseClaimRequest(worker=worker, queues=list(queues or ("default",)), **more)


async def listed(store: Store) -> list[WorkerInfo]:
    return await store.worker_list(DEFAULT_TENANT, limit=100)


async def test_a_claim_is_written_with_the_time_when_it_was_seen(store: Store, recorder: WorkerRecorder, clock: Clock) -> None:
    recorder.claimed(DEFAULT_TENANT, claim_of("host:1", "mail", types=["a"], concurrency=3, version="9"))
    clock.now += 4
    await recorder.run_once(NOW)
    (found,) = await listed(store)
    assert (found.worker, found.queues, found.types, found.concurrency) == ("host:1", ("mail",), ("a",), 3)
    assert (found.version, found.node, found.last_seen_at) == ("9", "node", NOW - seconds(4))


async def test_only_workers_that_were_seen_again_are_written_again(
    store: Store, recorder: WorkerRecorder, clock: Clock
) -> None:
    for worker in ("host:1", "host:2"):
        recorder.claimed(DEFAULT_TENANT, claim_of(worker))
    await recorder.run_once(NOW)
    clock.now += 10
    recorder.claimed(DEFAULT_TENANT, claim_of("host:1"))
    await recorder.run_once(NOW + seconds(10))
    assert [(one.worker, one.last_seen_at) for one in await listed(store)] == [("host:1", NOW + seconds(10)), ("host:2", NOW)]


async def test_a_stopping_worker_stays_stopping_until_it_claims(store: Store, recorder: WorkerRecorder) -> None:
    async def state() -> WorkerState:
        await recorder.run_once(NOW)
        return (await listed(store))[0].state

    recorder.claimed(DEFAULT_TENANT, claim_of())
    assert await state() is WorkerState.LIVE
    recorder.heartbeat(DEFAULT_TENANT, LeaseHeartbeatRequest(worker="host:1", leases=[], state=WorkerState.STOPPING))
    assert await state() is WorkerState.STOPPING
    recorder.heartbeat(DEFAULT_TENANT, LeaseHeartbeatRequest(worker="host:1", leases=[]))
    assert await state() is WorkerState.STOPPING
    recorder.claimed(DEFAULT_TENANT, claim_of())
    assert await state() is WorkerState.LIVE


async def test_a_heartbeat_on_another_node_keeps_the_queues(store: Store, recorder: WorkerRecorder) -> None:
    recorder.claimed(DEFAULT_TENANT, claim_of("host:1", "mail"))
    await recorder.run_once(NOW)
    other = WorkerRecorder(store, "other")
    other.heartbeat(DEFAULT_TENANT, LeaseHeartbeatRequest(worker="host:1", leases=[]))
    await other.run_once(NOW + seconds(30))
    (found,) = await listed(store)
    assert (found.queues, found.node) == (("mail",), "other")
    assert found.last_seen_at > NOW + seconds(29)


async def test_a_tenant_with_too_many_workers_takes_no_more_memory_and_affects_no_other(
    store: Store, recorder: WorkerRecorder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MAX_WORKERS_PER_TENANT", 3)
    for number in range(10):
        recorder.claimed(OTHER_TENANT, claim_of(f"host:{number}"))
    recorder.claimed(DEFAULT_TENANT, claim_of())
    await recorder.run_once(NOW)
    assert len(await store.worker_list(OTHER_TENANT, limit=100)) == 3
    assert len(await listed(store)) == 1
    clock.now += 121
    await recorder.run_once(NOW)
    recorder.claimed(OTHER_TENANT, claim_of("host:9"))
    await recorder.run_once(NOW)
    assert len(await store.worker_list(OTHER_TENANT, limit=100)) == 4


async def test_a_failed_write_is_repeated(store: Store, recorder: WorkerRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_args: object, **_more: object) -> int:
        raise RuntimeError("unavailable")

    recorder.claimed(DEFAULT_TENANT, claim_of())
    with monkeypatch.context() as patched:
        patched.setattr(store, "worker_write", fail)
        with pytest.raises(RuntimeError):
            await recorder.run_once(NOW)
    await recorder.run_once(NOW)
    assert len(await listed(store)) == 1


async def test_queues_are_those_with_tasks_and_those_that_workers_ask_for(store: Store, recorder: WorkerRecorder) -> None:
    await store.task_submit([make_task(queue="reports", run_at=NOW - minutes(1)), make_task(queue="everbeat:http")], now=NOW)
    recorder.claimed(DEFAULT_TENANT, claim_of("host:1", "mail"))
    await recorder.run_once(NOW)
    assert await WorkerDirectory(store).queues(DEFAULT_TENANT, now=NOW) == [
        QueueView("mail", workers=1, last_worker="host:1", last_worker_seen_at=NOW),
        QueueView("reports", ready=1, oldest_ready_seconds=60.0),
    ]


def info(worker: str = "host:25558", **more: Any) -> WorkerInfo:
    values: dict[str, Any] = {
        "id": UUID(int=1),
        "tenant_id": DEFAULT_TENANT,
        "queues": ("reports",),
        "types": ("build",),
        "concurrency": None,
        "version": None,
        "node": "node",
        "state": WorkerState.LIVE,
        "lease_seconds": 30.0,
        "started_at": NOW,
        "last_seen_at": NOW,
    }
    return WorkerInfo(worker=worker, **{**values, **more})


def text_of(*workers_: WorkerInfo, type_: str = "build") -> str | None:
    absence = absence_of("reports", type_, workers_, NOW)
    return None if absence is None else absence.text


def test_there_is_no_absence_while_a_live_worker_asks_for_the_type() -> None:
    assert text_of(info(last_seen_at=NOW - seconds(59))) is None
    assert text_of(info(types=None)) is None
    assert text_of(info(last_seen_at=NOW - seconds(600), lease_seconds=700)) is None


def test_the_absence_of_workers_names_the_last_one_and_when_it_was_seen() -> None:
    gone = info(last_seen_at=NOW - minutes(2))
    expected = 'no worker has asked for the queue "reports" since 11:58 UTC, when host:25558 was last seen'
    assert text_of(gone) == expected
    assert text_of(info(state=WorkerState.GONE, last_seen_at=NOW - minutes(2))) == expected
    assert text_of(info(last_seen_at=NOW - minutes(2 * 24 * 60))) == expected.replace("11:58", "2026-02-28 12:00")
    assert text_of() == 'no worker has asked for the queue "reports" in the last 7 days'


def test_the_absence_of_a_type_names_similar_types() -> None:
    live = info(types=("archive", "build_reports"))
    assert text_of(live, type_="build_report") == (
        'no worker has asked for the type "build_report" in the last 7 days; the workers on the queue "reports" ask for '
        "build_reports, archive; was the function renamed?"
    )
    before = info("host:1", types=("build_report",), last_seen_at=NOW - minutes(5))
    assert (text_of(live, before, type_="build_report") or "").startswith(
        'no worker has asked for the type "build_report" since 11:55 UTC, when host:1 was last seen; '
    )

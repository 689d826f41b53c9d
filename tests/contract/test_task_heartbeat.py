"""task_heartbeat and task_log: renewal of valid leases, with progress and log lines."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, TaskState
from everbeat.store.base import Store
from everbeat.store.rows import MAX_LOG_BYTES
from everbeat.store.values import HeartbeatWrite, LeaseRef, RenewedLease
from tests.factories import NOW, OTHER_TENANT, claim, execute_raw, lease_of, make_task, minutes, seconds


async def start(store: Store, *, lease_seconds: float = 30, **more: Any) -> ClaimedTask:
    await store.task_submit([make_task(**more)], now=NOW)
    (task,) = await claim(store, lease_seconds=lease_seconds)
    return task


async def texts_of(store: Store, id_: UUID) -> list[str]:
    return [line.text for line in await store.task_log(DEFAULT_TENANT, id_, after=None, limit=100)]


async def test_task_heartbeat_renews_a_lease_by_its_own_length(store: Store) -> None:
    task = await start(store, lease_seconds=12)
    renewed = await store.task_heartbeat([HeartbeatWrite(lease_of(task))], now=NOW + seconds(11))
    assert renewed == [RenewedLease(task.id, 1, NOW + seconds(23), False)]
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.lease_until, found.state) == (NOW + seconds(23), TaskState.RUNNING)


async def test_task_heartbeat_of_an_empty_batch(store: Store) -> None:
    assert await store.task_heartbeat([], now=NOW) == []


async def test_task_heartbeat_does_not_renew_beyond_the_deadline(store: Store) -> None:
    task = await start(store, timeout_seconds=40.0)
    (renewed,) = await store.task_heartbeat([HeartbeatWrite(lease_of(task))], now=NOW + seconds(20))
    assert renewed.lease_until == NOW + seconds(40)
    assert await store.task_heartbeat([HeartbeatWrite(lease_of(task))], now=NOW + seconds(40)) == []


async def test_task_heartbeat_does_not_renew_after_a_cancel_request(store: Store) -> None:
    task = await start(store)
    await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    heartbeats = [HeartbeatWrite(lease_of(task), 0.5, "stopping", "bye")]
    assert await store.task_heartbeat(heartbeats, now=NOW + seconds(20)) == [RenewedLease(task.id, 1, NOW + seconds(30), True)]
    assert await texts_of(store, task.id) == ["bye"]


INVALID_LEASES: dict[str, dict[str, Any]] = {
    "another fence": {"fence": 2},
    "an older fence": {"fence": 0},
    "another tenant": {"tenant_id": OTHER_TENANT},
    "another task": {"id": UUID(int=5)},
}


@pytest.mark.parametrize("case", list(INVALID_LEASES))
async def test_task_heartbeat_does_not_renew_an_invalid_lease(store: Store, case: str) -> None:
    task = await start(store)
    heartbeat = HeartbeatWrite(lease_of(task, **INVALID_LEASES[case]), 0.5, "message", "log")
    assert await store.task_heartbeat([heartbeat], now=NOW + seconds(5)) == []
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.lease_until, found.progress_fraction) == (NOW + seconds(30), None)
    assert await texts_of(store, task.id) == []


async def test_task_heartbeat_does_not_renew_an_expired_lease(store: Store) -> None:
    task = await start(store)
    assert await store.task_heartbeat([HeartbeatWrite(lease_of(task), log="late")], now=NOW + seconds(30)) == []
    assert await texts_of(store, task.id) == []


async def test_task_heartbeat_does_not_renew_the_lease_of_a_requeued_task(store: Store) -> None:
    task = await start(store)
    back = AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.RELEASED, TaskState.READY, None, None)
    await store.task_end([back], is_expired=False, now=NOW)
    assert await store.task_heartbeat([HeartbeatWrite(lease_of(task))], now=NOW) == []


async def test_task_heartbeat_keeps_progress_until_the_next_progress(store: Store) -> None:
    task = await start(store)
    shown = []
    for fraction, message in ((None, None), (0.0, "a"), (0.5, None), (None, "b"), (None, None)):
        await store.task_heartbeat([HeartbeatWrite(lease_of(task), fraction, message)], now=NOW)
        (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
        shown.append((found.progress_fraction, found.progress_message))
    assert shown == [(None, None), (0.0, "a"), (0.5, "a"), (0.5, "b"), (0.5, "b")]


async def test_task_heartbeat_of_a_batch_renews_the_valid_leases(store: Store) -> None:
    await store.task_submit([make_task() for _ in range(50)], now=NOW)
    tasks = await claim(store, limit=50)
    leases = [lease_of(task, fence=task.fence + number % 2) for number, task in enumerate(tasks)]
    heartbeats = [HeartbeatWrite(lease, number / 100) for number, lease in enumerate(leases)]
    renewed = await store.task_heartbeat(heartbeats, now=NOW + seconds(1))
    assert {one.id for one in renewed} == {task.id for task in tasks[::2]}
    found = {task.id: task.progress_fraction for task in await store.task_find(DEFAULT_TENANT, [task.id for task in tasks])}
    assert [found[task.id] for task in tasks[:4]] == [0.0, None, 0.02, None]


async def test_task_heartbeat_with_a_lease_twice_stores_all_log_lines(store: Store) -> None:
    """Heartbeats of many requests are written together, and one of them may have been sent twice."""
    task = await start(store)
    heartbeats = [HeartbeatWrite(lease_of(task), 0.1, "a", "one"), HeartbeatWrite(lease_of(task), 0.2, None, "two")]
    assert len(await store.task_heartbeat(heartbeats, now=NOW)) == 1
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.progress_fraction, found.progress_message) == (0.2, "a")
    assert await texts_of(store, task.id) == ["one\ntwo"]


@pytest.mark.parametrize("wrong", [{"fence": 7}, {"tenant_id": OTHER_TENANT}])
@pytest.mark.parametrize("is_first", [True, False])
async def test_task_heartbeat_stores_the_log_of_a_valid_lease_only(store: Store, wrong: dict[str, Any], is_first: bool) -> None:
    task = await start(store)
    heartbeats = [
        HeartbeatWrite(lease_of(task), 0.5, "ours", "ours"),
        HeartbeatWrite(lease_of(task, **wrong), 0.9, "theirs", "theirs"),
    ]
    renewed = await store.task_heartbeat(heartbeats[:: 1 if is_first else -1], now=NOW)
    assert renewed == [RenewedLease(task.id, 1, NOW + seconds(30), False)]
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.progress_fraction, found.progress_message) == (0.5, "ours")
    assert await texts_of(store, task.id) == ["ours"]


async def test_task_heartbeat_accepts_any_text(store: Store) -> None:
    task = await start(store)
    await store.task_heartbeat([HeartbeatWrite(lease_of(task), None, "a\x00b", "c\x00d 😀")], now=NOW)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert found.progress_message == "a\N{REPLACEMENT CHARACTER}b"
    assert await texts_of(store, task.id) == ["c\N{REPLACEMENT CHARACTER}d 😀"]


async def test_task_heartbeat_uses_the_database_clock(store: Store) -> None:
    await store.task_submit([make_task()])
    (task,) = await claim(store, now=None)  # type: ignore[arg-type]
    (renewed,) = await store.task_heartbeat([HeartbeatWrite(lease_of(task), log="x")])
    assert task.lease_until <= renewed.lease_until <= await store.clock() + seconds(30)


async def test_task_log_returns_the_lines_of_all_attempts_in_order(store: Store) -> None:
    task = await start(store)
    await store.task_heartbeat([HeartbeatWrite(lease_of(task), log="one")], now=NOW + seconds(1))
    await store.task_heartbeat([HeartbeatWrite(lease_of(task), log="")], now=NOW + seconds(2))
    back = AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.LOST, TaskState.READY, None, None)
    await store.task_end([back], is_expired=True, now=NOW + minutes(1))
    (again,) = await claim(store, worker="w2", now=NOW + minutes(1))
    await store.task_heartbeat([HeartbeatWrite(lease_of(again), log="two")], now=NOW + minutes(1))
    lines = await store.task_log(DEFAULT_TENANT, task.id, after=None, limit=10)
    assert [(line.text, line.attempt, line.worker) for line in lines] == [("one", 1, "worker"), ("two", 2, "w2")]
    assert [line.at for line in lines] == [NOW + seconds(1), NOW + minutes(1)]


async def test_task_log_is_paged_and_only_visible_to_its_tenant(store: Store) -> None:
    task = await start(store)
    for number in range(5):
        await store.task_heartbeat([HeartbeatWrite(lease_of(task), log=str(number))], now=NOW)
    first = await store.task_log(DEFAULT_TENANT, task.id, after=None, limit=2)
    rest = await store.task_log(DEFAULT_TENANT, task.id, after=first[-1].id, limit=10)
    assert [line.text for line in first + rest] == ["0", "1", "2", "3", "4"]
    assert await store.task_log(OTHER_TENANT, task.id, after=None, limit=10) == []
    assert await store.task_log(DEFAULT_TENANT, UUID(int=5), after=None, limit=10) == []


async def test_task_log_remains_after_its_task_finished(store: Store) -> None:
    task = await start(store)
    await store.task_heartbeat([HeartbeatWrite(lease_of(task), log="x")], now=NOW)
    await store.task_complete([(lease_of(task), None)], now=NOW)
    assert await texts_of(store, task.id) == ["x"]


async def test_task_log_is_truncated_with_one_message_when_full(store: Store) -> None:
    task = await start(store)
    part = "ä" * (MAX_LOG_BYTES // 4)
    for _ in range(3):
        await store.task_heartbeat([HeartbeatWrite(lease_of(task), log=part + "é")], now=NOW)
    await store.task_heartbeat([HeartbeatWrite(lease_of(task), log="more")], now=NOW)
    first, second = await texts_of(store, task.id)
    assert first == part + "é"
    kept, _, last = second.rpartition("\n")
    assert set(kept) == {"ä"}
    assert len((first + kept).encode()) == MAX_LOG_BYTES
    assert "truncated" in last


async def test_task_log_over_its_limit_accepts_heartbeats(store: Store) -> None:
    task = await start(store)
    await execute_raw(store, "UPDATE tasks SET log_bytes = 2147483000")
    heartbeats = [HeartbeatWrite(lease_of(task), log="x" * 100_000)]
    assert len(await store.task_heartbeat(heartbeats, now=NOW)) == 1
    assert len(await store.task_heartbeat(heartbeats, now=NOW)) == 1
    assert await texts_of(store, task.id) == []


async def test_task_log_of_a_thousand_leases(store: Store) -> None:
    await store.task_submit([make_task() for _ in range(1000)], now=NOW)
    tasks = await claim(store, limit=1000)
    heartbeats = [HeartbeatWrite(LeaseRef(DEFAULT_TENANT, task.id, task.fence), 0.5, "x", "line") for task in tasks]
    assert len(await store.task_heartbeat(heartbeats, now=NOW)) == 1000
    assert await texts_of(store, tasks[-1].id) == ["line"]

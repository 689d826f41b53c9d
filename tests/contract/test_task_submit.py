"""task_submit and task_key_prune: new tasks are inserted atomically, and each idempotency key is used once."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from everbeat.core.errors import KeyTaken, StoreRefused
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.targets import WorkerTarget
from everbeat.core.tasks import NewTask, Origin, TaskKey, TaskState
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.postgres.tasks import key_columns, task_columns
from everbeat.store.rows import group_by_key
from everbeat.store.values import SubmitResult
from tests.factories import NOW, OTHER_TENANT, count_rows, make_task, minutes, open_second_store, seconds

DAY = seconds(86_400)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def keyed(key: str = "k", fingerprint: bytes = b"same", tenant_id: UUID = DEFAULT_TENANT) -> NewTask:
    return make_task(key=TaskKey(key, fingerprint), tenant_id=tenant_id)


async def test_task_submit_stores_every_field(store: Store) -> None:
    task = make_task(
        "mail",
        tenant_id=OTHER_TENANT,
        queue="slow",
        target='{"kind":"worker","type":"mail","queue":"slow"}',
        payload='{"to":"ä\\u0000"}'.encode(),
        origin=Origin.TRIGGER,
        priority=-5,
        max_attempts=7,
        retry='{"kind":"fixed"}',
        timeout_seconds=12.5,
        labels='{"team":"a"}',
        schedule_id=UUID(int=9),
        schedule_name="nightly",
        scheduled_for=NOW - minutes(1),
        traceparent=TRACE,
    )
    submitted = await store.task_submit([task], now=NOW)
    assert submitted[:4] == (NOW, [task.id], frozenset(), frozenset())
    (found,) = await store.task_find(OTHER_TENANT, [task.id])
    assert (found.id, found.tenant_id, found.type, found.queue) == (task.id, OTHER_TENANT, "mail", "slow")
    assert found.target == WorkerTarget(type="mail", queue="slow")
    assert (found.payload, found.retry, found.labels) == (task.payload, b'{"kind":"fixed"}', {"team": "a"})
    assert (found.state, found.origin, found.priority) == (TaskState.READY, Origin.TRIGGER, -5)
    assert (found.attempt, found.max_attempts, found.timeout_seconds, found.fence) == (0, 7, 12.5, 0)
    assert (found.schedule_id, found.schedule, found.scheduled_for) == (UUID(int=9), "nightly", NOW - minutes(1))
    assert (found.run_at, found.created_at, found.started_at, found.finished_at) == (NOW, NOW, None, None)
    assert (found.worker, found.lease_until, found.cancel_requested, found.traceparent) == (None, None, False, TRACE)
    assert (found.result, found.error, found.progress_fraction, found.progress_message) == (None,) * 4


async def test_task_submit_of_a_delayed_task_makes_it_scheduled(store: Store) -> None:
    given = [
        make_task(),
        make_task(run_at=NOW),
        make_task(run_at=NOW - minutes(5)),
        make_task(run_at=NOW + seconds(0.000001)),
        make_task(delay_seconds=0),
        make_task(delay_seconds=1.5),
    ]
    await store.task_submit(given, now=NOW)
    found = {task.id: task for task in await store.task_find(DEFAULT_TENANT, [task.id for task in given])}
    states = [(found[task.id].state.value, (found[task.id].run_at - NOW).total_seconds()) for task in given]
    ready, scheduled = "ready", "scheduled"
    assert states == [(ready, 0), (ready, 0), (ready, -300), (scheduled, 0.000001), (ready, 0), (scheduled, 1.5)]


async def test_task_submit_uses_the_database_clock(store: Store) -> None:
    before = await store.clock()
    task = make_task()
    submitted = await store.task_submit([task])
    assert before <= submitted.now <= await store.clock()
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert found.created_at == found.run_at == submitted.now


async def test_task_submit_of_an_empty_batch_returns_the_time(store: Store) -> None:
    assert await store.task_submit([], now=NOW) == SubmitResult(NOW, [], frozenset(), frozenset(), [])


async def test_task_submit_is_atomic(store: Store) -> None:
    good, bad = keyed("good"), make_task(partition=300)
    with pytest.raises(StoreRefused):
        await store.task_submit([make_task(), good, bad], now=NOW)
    assert await count_rows(store, "tasks") == await count_rows(store, "task_keys") == 0


async def test_task_submit_of_a_thousand_tasks(store: Store) -> None:
    tasks = [make_task() for _ in range(1000)]
    assert (await store.task_submit(tasks, now=NOW)).ids == [task.id for task in tasks]
    assert await count_rows(store, "tasks") == 1000


async def test_task_submit_with_a_known_key_returns_the_first_task(store: Store) -> None:
    first, again, other = keyed(), keyed(), make_task()
    assert (await store.task_submit([first], now=NOW)).repeated == frozenset()
    submitted = await store.task_submit([other, again], now=NOW + seconds(5))
    assert (submitted.ids, submitted.repeated, submitted.mismatched) == ([other.id, first.id], frozenset({1}), frozenset())
    assert await count_rows(store, "tasks") == 2


async def test_task_submit_fails_on_a_taken_key_with_an_error_of_its_own(postgres_url: str) -> None:
    """The error is told apart from other refusals by its SQLSTATE, and the statement writes nothing."""
    store = PostgresStore(postgres_url, listen=False)
    await store.task_submit([keyed()], now=NOW)
    tasks = [keyed("other"), keyed()]
    values = {**task_columns(tasks), **key_columns(tasks, group_by_key(tasks).firsts)}
    for _ in range(8):  # more than five times, so that PostgreSQL may use a generic plan
        with pytest.raises(KeyTaken, match="an idempotency key is taken"):
            await store._read("task_submit", now=NOW, **values)
    assert (await count_rows(store, "tasks"), await count_rows(store, "task_keys")) == (1, 1)
    with pytest.raises(StoreRefused) as refused:
        await store.task_submit([keyed("third"), make_task(partition=300)], now=NOW)
    assert not isinstance(refused.value, KeyTaken)
    await store.close()


async def test_task_submit_with_a_key_of_a_different_task_writes_nothing(store: Store) -> None:
    await store.task_submit([keyed("a"), keyed("b")], now=NOW)
    batch = [make_task(), keyed("new"), keyed("a", b"other"), keyed("b")]
    submitted = await store.task_submit(batch, now=NOW)
    assert submitted.mismatched == {2}
    assert (await count_rows(store, "tasks"), await count_rows(store, "task_keys")) == (2, 2)
    # The rejected batch has stored nothing, so the new key is still free.
    assert (await store.task_submit([keyed("new")], now=NOW)).repeated == frozenset()


async def test_task_submit_with_one_key_twice_in_a_batch_creates_one_task(store: Store) -> None:
    one, two, three = keyed(), make_task(), keyed()
    submitted = await store.task_submit([one, two, three], now=NOW)
    assert (submitted.ids, submitted.repeated) == ([one.id, two.id, one.id], frozenset({2}))
    assert await count_rows(store, "tasks") == 2


async def test_task_submit_with_one_key_for_two_different_tasks_writes_nothing(store: Store) -> None:
    submitted = await store.task_submit([keyed(), keyed(fingerprint=b"other")], now=NOW)
    assert submitted.mismatched == {1}
    assert await count_rows(store, "tasks") == await count_rows(store, "task_keys") == 0


async def test_task_submit_with_a_known_key_twice_in_a_batch(store: Store) -> None:
    (known,) = (await store.task_submit([keyed()], now=NOW)).ids
    submitted = await store.task_submit([keyed(), keyed()], now=NOW)
    assert (submitted.ids, submitted.repeated) == ([known, known], frozenset({0, 1}))
    submitted = await store.task_submit([keyed(), keyed(fingerprint=b"other")], now=NOW)
    assert submitted.mismatched == {1}


async def test_task_submit_of_a_repeated_batch_with_one_key_writes_it_once(store: Store) -> None:
    """The key of the first task covers the whole batch, so a repeated batch writes nothing."""
    first, rest = keyed(), [make_task(), make_task()]
    assert (await store.task_submit([first, *rest], requires_new_keys=True, now=NOW)).repeated == frozenset()
    submitted = await store.task_submit([keyed(), make_task(), make_task()], requires_new_keys=True, now=NOW)
    assert (submitted.ids[0], submitted.repeated, submitted.mismatched) == (first.id, frozenset({0}), frozenset())
    assert (
        await store.task_submit([keyed(fingerprint=b"other"), make_task()], requires_new_keys=True, now=NOW)
    ).mismatched == {0}
    assert await count_rows(store, "tasks") == 3


async def test_task_submit_that_requires_new_keys_writes_nothing_if_a_key_is_in_the_batch_twice(store: Store) -> None:
    batches = [keyed("one"), make_task(), keyed("two"), make_task(), keyed("one"), make_task()]
    submitted = await store.task_submit(batches, requires_new_keys=True, now=NOW)
    assert (submitted.repeated, submitted.changes) == (frozenset({4}), [])
    assert await count_rows(store, "tasks") == await count_rows(store, "task_keys") == 0


async def test_task_submit_of_a_batch_with_one_key_under_concurrency_writes_it_once(store: Store) -> None:
    second_store = open_second_store(store)
    for number in range(10):
        results = await asyncio.gather(
            *(
                one.task_submit([keyed(str(number)), make_task(), make_task()], requires_new_keys=True, now=NOW)
                for one in (store, second_store)
            )
        )
        assert sorted(len(result.repeated) for result in results) == [0, 1]
    await second_store.close()
    assert await count_rows(store, "tasks") == 30


async def test_task_submit_separates_the_keys_of_tenants(store: Store) -> None:
    ours, theirs = keyed(), keyed(fingerprint=b"theirs", tenant_id=OTHER_TENANT)
    submitted = await store.task_submit([ours, theirs], now=NOW)
    assert (submitted.ids, submitted.repeated, submitted.mismatched) == ([ours.id, theirs.id], frozenset(), frozenset())


async def test_task_submit_accepts_a_key_again_after_a_day(store: Store) -> None:
    await store.task_submit([keyed()], now=NOW)
    late = keyed(fingerprint=b"other")
    assert (await store.task_submit([late], now=NOW + DAY - seconds(0.000001))).mismatched == {0}
    submitted = await store.task_submit([late], now=NOW + DAY)
    assert (submitted.ids, submitted.repeated, submitted.mismatched) == ([late.id], frozenset(), frozenset())
    # The key now belongs to the new task, again for a day.
    assert (await store.task_submit([keyed(fingerprint=b"other")], now=NOW + DAY + minutes(60))).ids == [late.id]


async def test_task_submit_keeps_a_key_after_its_task_is_gone(store: Store) -> None:
    task = keyed()
    await store.task_submit([task], now=NOW)
    await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    assert (await store.task_submit([keyed()], now=NOW + minutes(5))).ids == [task.id]


async def test_task_submit_under_concurrency_with_the_same_keys_creates_each_task_once(store: Store) -> None:
    stores = [store, *(open_second_store(store) for _ in range(3))]
    for number in range(10):
        keys = [f"{number}-{index}" for index in range(5)]
        # Each caller passes the keys in a different order.
        batches = [[keyed(key) for key in keys[offset:] + keys[:offset]] for offset in range(4)]
        results = await asyncio.gather(*(one.task_submit(batch, now=NOW) for one, batch in zip(stores, batches, strict=True)))
        owners: dict[str, set[UUID]] = {}
        for batch, result in zip(batches, results, strict=True):
            for task, id_ in zip(batch, result.ids, strict=True):
                assert task.key is not None
                owners.setdefault(task.key.key, set()).add(id_)
        assert {len(ids) for ids in owners.values()} == {1}
        assert sum(5 - len(result.repeated) for result in results) == 5
    for second_store in stores[1:]:
        await second_store.close()
    assert await count_rows(store, "tasks") == 50


async def test_task_submit_under_concurrency_with_one_key_for_different_tasks(store: Store) -> None:
    second_store = open_second_store(store)
    for number in range(10):
        one, two = await asyncio.gather(
            store.task_submit([make_task(), keyed(str(number), b"one")], now=NOW),
            second_store.task_submit([make_task(), keyed(str(number), b"two")], now=NOW),
        )
        assert sorted([len(one.mismatched), len(two.mismatched)]) == [0, 1]
    await second_store.close()
    assert await count_rows(store, "tasks") == 20


async def test_task_key_prune_deletes_expired_keys_in_batches(store: Store) -> None:
    for number in range(4):
        await store.task_submit([keyed(str(number))], now=NOW + minutes(number))
    at = NOW + DAY + minutes(2.5)
    assert [await store.task_key_prune(limit=2, now=at) for _ in range(3)] == [2, 1, 0]
    assert (await store.task_submit([keyed("3", b"other")], now=at)).mismatched == {0}

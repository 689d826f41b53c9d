"""Batches of 10,000 tasks: for how long they occupy the event loop and the writer of SQLite, and that they stay atomic."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from everbeat.core.errors import InvalidInput
from everbeat.core.protocol import MAX_SUBMITTED, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskKey
from everbeat.store.base import Store
from everbeat.store.sqlite import connections
from everbeat.store.sqlite.store import SqliteStore
from tests.factories import OTHER_TENANT, SteppedNode, StoreOverride, count_rows, make_input

MAX_LOOP_MS = 25.0
# Statements of one transaction. Between two of them, the writer waits until the event loop lets it run Python code.
MAX_STATEMENTS = 40

BATCHES: dict[str, Callable[[int], TaskInput]] = {
    "equal": lambda _number: make_input(type="t"),
    "different": lambda number: make_input(type="t", labels={"number": str(number)}),
    "with keys": lambda number: make_input(type="t", idempotency_key=f"key-{number}"),
}


@asynccontextmanager
async def longest_step() -> AsyncIterator[list[float]]:
    """Measure the longest step of the event loop in milliseconds of processor time, which other processes do not change.

    As in the server, the objects that exist before are no work for the garbage collector. Those of a test run are many.
    """
    gc.collect()
    gc.freeze()
    steps = [0.0]

    async def measure() -> None:
        while True:
            started = time.thread_time()
            await asyncio.sleep(0)
            steps[0] = max(steps[0], (time.thread_time() - started) * 1000)

    measuring = asyncio.create_task(measure())
    await asyncio.sleep(0)
    try:
        yield steps
    finally:
        measuring.cancel()
        gc.unfreeze()


@pytest.mark.parametrize("kind", BATCHES)
async def test_a_large_batch_does_not_block_the_event_loop(store: Store, kind: str) -> None:
    node = SteppedNode(store)
    inputs = [BATCHES[kind](number) for number in range(MAX_SUBMITTED)]
    worst = 0.0
    for number in range(3):  # with keys, the second and third are repeats
        key = TaskKey(f"batch-{number}", b"f") if kind == "with keys" else None
        async with longest_step() as steps:
            ids = await node.tasks.submit_batch(DEFAULT_TENANT, inputs, key=key)
        assert len(set(ids)) == MAX_SUBMITTED
        worst = max(worst, steps[0])
    assert worst <= MAX_LOOP_MS


@pytest.mark.parametrize("kind", BATCHES)
async def test_the_writer_of_sqlite_inserts_a_large_batch_in_a_few_statements(
    sqlite_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    in_transaction = connections._in_transaction

    def counted(session: connections.SqliteSession, work: Any) -> Any:
        counts.append(0)

        def count(_cursor: apsw.Cursor, _sql: str, _values: Any) -> bool:
            counts[-1] += 1
            return True

        session.connection.exec_trace = count
        try:
            return in_transaction(session, work)
        finally:
            session.connection.exec_trace = None

    store = SqliteStore(sqlite_path)
    await store.migrate()
    try:
        node = SteppedNode(store)
        monkeypatch.setattr(connections, "_in_transaction", counted)
        await node.tasks.submit_batch(DEFAULT_TENANT, [BATCHES[kind](number) for number in range(MAX_SUBMITTED)])
        monkeypatch.undo()
        assert await count_rows(store, "tasks") == MAX_SUBMITTED
    finally:
        await store.close()
    assert counts
    assert max(counts) <= MAX_STATEMENTS


async def test_tasks_of_a_large_batch_are_written_with_their_own_fields(store: Store) -> None:
    node = SteppedNode(store)
    inputs = [make_input(type=f"type-{number % 3}", delay_seconds=number % 2 * 60.5) for number in range(300)]
    inputs += [make_input(type="last", payload={"a": '\x01"\u00e9'}, priority=7, timeout_seconds=0.25)] * 100
    ids = await node.tasks.submit_batch(DEFAULT_TENANT, inputs)
    tasks = {task.id: task for task in await store.task_find(DEFAULT_TENANT, ids)}
    assert len(tasks) == 400
    for id_, given in zip(ids, inputs, strict=True):
        task = tasks[id_]
        assert (task.type, task.priority, task.timeout_seconds) == (given.type, given.priority, given.timeout_seconds)
        assert bytes(task.payload) == bytes(given.payload)
        delay = (task.run_at - task.created_at).total_seconds()
        assert delay == pytest.approx(given.delay_seconds or 0)
        assert task.state.value == ("scheduled" if given.delay_seconds else "ready")


async def test_a_large_batch_with_one_wrong_key_writes_nothing(store: Store) -> None:
    node = SteppedNode(store)
    await node.tasks.submit_batch(DEFAULT_TENANT, [make_input(idempotency_key="key-2999", type="other")])
    inputs = [make_input(type="t", idempotency_key=f"key-{number}") for number in range(3000)]
    with pytest.raises(InvalidInput, match="was used before"):
        await node.tasks.submit_batch(DEFAULT_TENANT, inputs)
    assert await count_rows(store, "tasks") == 1
    assert await count_rows(store, "task_keys") == 1


async def test_a_large_batch_with_some_known_tasks_writes_the_others(store: Store) -> None:
    node = SteppedNode(store)
    inputs = [make_input(type="t", idempotency_key=f"key-{number}") for number in range(3000)]
    (known,) = await node.tasks.submit_batch(DEFAULT_TENANT, [inputs[1500]])
    ids = await node.tasks.submit_batch(DEFAULT_TENANT, inputs)
    assert ids[1500] == known
    assert await node.tasks.submit_batch(DEFAULT_TENANT, inputs) == ids
    assert await count_rows(store, "tasks") == 3000


async def test_large_batches_of_a_tenant_are_written_one_after_the_other(store: Store) -> None:
    writing: dict[Any, int] = {}
    most: dict[Any, int] = {}
    both = asyncio.Event()

    class Watched(StoreOverride):
        async def task_submit(self, tasks: Any, **more: Any) -> Any:
            tenant_id = tasks[0].tenant_id
            writing[tenant_id] = writing.get(tenant_id, 0) + 1
            most[tenant_id] = max(most.get(tenant_id, 0), writing[tenant_id])
            if len(writing) == 2:
                both.set()
            async with asyncio.timeout(20):
                await both.wait()  # another tenant is not held up
            try:
                return await store.task_submit(tasks, **more)
            finally:
                writing[tenant_id] -= 1

    node = SteppedNode(Watched(store))
    inputs = [make_input(type="t")] * 1001
    await asyncio.gather(*(node.tasks.submit_batch(one, inputs) for one in [DEFAULT_TENANT] * 3 + [OTHER_TENANT] * 2))
    assert most == {DEFAULT_TENANT: 1, OTHER_TENANT: 1}
    assert await count_rows(store, "tasks") == 5 * 1001

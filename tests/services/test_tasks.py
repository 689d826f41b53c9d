"""Submitting, reading and changing tasks: idempotency keys, atomic batches, cancels, retries, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from everbeat.core.errors import Conflict, InvalidInput, NotFound, StoreRefused, StoreUnavailable, TooLarge
from everbeat.core.protocol import MAX_SUBMITTED
from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.tasks import NewTask, Origin, TaskKey, TaskRecord, TaskState
from everbeat.services.events import TasksFinished, TasksSubmitted
from everbeat.store.base import Store
from everbeat.store.values import QueueDepth, SubmitResult, TaskFilter
from tests.factories import (
    NOW,
    OTHER_TENANT,
    SteppedNode,
    StoreOverride,
    count_rows,
    make_input,
    minutes,
    open_second_store,
    seconds,
)
from tests.services.workers import Worker, get, outcomes_of, submit, submit_many

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


@pytest.fixture
def worker(node: SteppedNode) -> Worker:
    return Worker(node)


class CountingStore(StoreOverride):
    """Counts the writes of new tasks, and can refuse them or be unavailable."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.sizes: list[int] = []
        self.refused: set[str] = set()
        self.is_unavailable = False

    async def task_submit(self, tasks: Sequence[NewTask], **more: Any) -> SubmitResult:
        self.sizes.append(len(tasks))
        if self.is_unavailable:
            raise StoreUnavailable("unavailable")
        if any(task.type in self.refused for task in tasks):
            raise StoreRefused("refused")
        submitted: SubmitResult = await self.inner.task_submit(tasks, **more)
        return submitted


# Submitting


async def test_a_submitted_task_has_the_given_fields(node: SteppedNode) -> None:
    given = make_input(
        type="report",
        queue="reports",
        payload={"n": [1, 2.5, None, "ü"]},
        priority=7,
        max_attempts=9,
        retry=Retry(kind=RetryKind.LINEAR, base_seconds=3),
        timeout_seconds=12.5,
        labels={"team": "a"},
    )
    submitted, is_new = await node.tasks.submit(DEFAULT_TENANT, given, traceparent=TRACE, now=NOW)
    kept = await get(node, submitted)
    assert is_new
    assert kept == submitted, "the returned task equals the stored task"
    assert (kept.type, kept.queue, kept.state, kept.origin) == ("report", "reports", TaskState.READY, Origin.SUBMIT)
    assert msgspec.json.decode(kept.payload) == msgspec.json.decode(given.payload)
    assert (kept.priority, kept.max_attempts, kept.timeout_seconds, kept.labels) == (7, 9, 12.5, {"team": "a"})
    assert msgspec.json.decode(kept.retry, type=Retry) == given.retry
    assert (kept.traceparent, kept.created_at, kept.run_at) == (TRACE, NOW, NOW)
    claimed = await Worker(node).claim_one(queues=["reports"])
    assert (claimed.traceparent, bytes(claimed.payload)) == (TRACE, kept.payload)


async def test_priority_takes_precedence_over_age(node: SteppedNode, worker: Worker) -> None:
    for name, priority in (("third", 100), ("first", 0), ("fourth", 100), ("second", 99)):
        await submit(node, name, priority=priority)
        node.move_to(node.now + seconds(1))
    assert [task.type for task in await worker.claim(10)] == ["first", "second", "third", "fourth"]


async def test_a_key_creates_one_task_and_returns_it_afterwards(node: SteppedNode, worker: Worker) -> None:
    given = make_input(type="work", payload={"a": 1, "b": 2})
    first, is_new = await node.tasks.submit(DEFAULT_TENANT, given, key="once", now=NOW)
    same = make_input(type="work", payload={"b": 2, "a": 1})
    again, is_new_again = await node.tasks.submit(DEFAULT_TENANT, same, key="once", now=NOW + minutes(1))
    assert (is_new, is_new_again, again) == (True, False, first)
    await worker.complete(await worker.claim_one())
    later, _ = await node.tasks.submit(DEFAULT_TENANT, given, key="once", now=NOW + timedelta(hours=23))
    assert (later.id, later.state) == (first.id, TaskState.COMPLETED)
    assert node.events_of(TasksSubmitted) == [TasksSubmitted(1)]


async def test_a_key_expires_after_a_day(node: SteppedNode) -> None:
    first = await submit(node, key="once")
    node.move_to(NOW + timedelta(hours=24))
    assert (await submit(node, key="once")).id != first.id
    assert await node.store.task_key_prune(limit=10, now=NOW + timedelta(hours=49)) == 1


async def test_a_key_with_another_body_is_refused_and_writes_nothing(node: SteppedNode) -> None:
    await submit(node, key="once")
    with pytest.raises(InvalidInput, match="used before"):
        await submit(node, "other", key="once")
    assert await count_rows(node.store, "tasks") == 1


async def test_keys_of_tenants_are_separate(node: SteppedNode) -> None:
    first = await submit(node, key="once")
    assert (await submit(node, "other", key="once", tenant_id=OTHER_TENANT)).id != first.id


async def test_concurrent_submits_with_one_key_create_one_task(store: Store) -> None:
    second_store = open_second_store(store)
    nodes = [SteppedNode(store), SteppedNode(second_store)]
    given = make_input(type="work")
    results = await asyncio.gather(*(node.tasks.submit(DEFAULT_TENANT, given, key="once") for node in nodes for _ in range(10)))
    assert len({task.id for task, _ in results}) == 1
    assert sum(is_new for _, is_new in results) == 1
    assert await count_rows(store, "tasks") == 1
    await second_store.close()


async def test_a_refused_key_does_not_affect_submits_of_the_same_batch(node: SteppedNode) -> None:
    await node.tasks.submit(DEFAULT_TENANT, make_input(type="first"), key="taken")
    calls = [node.tasks.submit(DEFAULT_TENANT, make_input(type=f"type-{n}"), key=f"key-{n}") for n in range(5)]
    calls += [node.tasks.submit(DEFAULT_TENANT, make_input(type="wrong"), key="taken") for _ in range(3)]
    calls += [node.tasks.submit(DEFAULT_TENANT, make_input(type="first"), key="taken")]
    calls += [node.tasks.submit(DEFAULT_TENANT, make_input(type=f"one-{n}"), key="contested") for n in range(3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result).__name__ for result in results[:9]] == ["tuple"] * 5 + ["InvalidInput"] * 3 + ["tuple"]
    contested = [result for result in results[9:] if not isinstance(result, BaseException)]
    assert [task.type for task, _ in contested] == ["one-0"], "the first task gets the key"
    assert await count_rows(node.store, "tasks") == 7


async def test_a_key_of_a_refused_batch_is_free_for_other_submits(node: SteppedNode) -> None:
    await node.tasks.submit(DEFAULT_TENANT, make_input(type="first"), key="taken")
    batch = [make_input(type="wrong", idempotency_key="taken"), make_input(type="one", idempotency_key="free")]
    filler, refused, written = await asyncio.gather(
        node.tasks.submit(DEFAULT_TENANT, make_input(type="filler")),  # delays the others, so that they are written together
        node.tasks.submit_batch(DEFAULT_TENANT, batch),
        node.tasks.submit(DEFAULT_TENANT, make_input(type="two"), key="free"),
        return_exceptions=True,
    )
    assert not isinstance(filler, BaseException)
    assert isinstance(refused, InvalidInput)
    assert [error.field for error in refused.errors] == ["tasks[0].idempotency_key"]
    assert not isinstance(written, BaseException)
    assert await count_rows(node.store, "tasks") == 3


async def test_concurrent_submits_share_a_write(store: Store) -> None:
    counting = CountingStore(store)
    node = SteppedNode(counting)
    await node.tasks.submit(DEFAULT_TENANT, make_input(type="first"))  # loads the tenants, so that the others need not wait
    counting.sizes.clear()
    results = await asyncio.gather(*(node.tasks.submit(DEFAULT_TENANT, make_input(type=f"type-{n}")) for n in range(200)))
    assert len(counting.sizes) <= 3
    assert [task.type for task, _ in results] == [f"type-{n}" for n in range(200)]
    found = {task.id: task.type for task in await store.task_find(DEFAULT_TENANT, [task.id for task, _ in results])}
    assert found == {task.id: task.type for task, _ in results}


async def test_a_submit_that_the_database_refuses_fails_alone(store: Store) -> None:
    counting = CountingStore(store)
    counting.refused = {"bad"}
    node = SteppedNode(counting)
    names = ["good"] * 10 + ["bad"] + ["good"] * 10
    results = await asyncio.gather(
        *(node.tasks.submit(DEFAULT_TENANT, make_input(type=name)) for name in names), return_exceptions=True
    )
    assert [isinstance(result, StoreRefused) for result in results] == [name == "bad" for name in names]
    assert await count_rows(store, "tasks") == 20


async def test_an_unavailable_database_is_reported_and_the_next_submit_works(store: Store) -> None:
    counting = CountingStore(store)
    counting.is_unavailable = True
    node = SteppedNode(counting)
    with pytest.raises(StoreUnavailable):
        await node.tasks.submit(DEFAULT_TENANT, make_input(type="work"))
    counting.is_unavailable = False
    await node.tasks.submit(DEFAULT_TENANT, make_input(type="work"))
    assert await count_rows(store, "tasks") == 1


# Batches


async def test_a_batch_is_atomic_and_its_ids_are_in_order(node: SteppedNode) -> None:
    given = [make_input(type=f"type-{n}", idempotency_key=f"key-{n}" if n % 3 == 0 else None) for n in range(50)]
    ids = await node.tasks.submit_batch(DEFAULT_TENANT, given, now=NOW)
    found = {task.id: task.type for task in await node.store.task_find(DEFAULT_TENANT, ids)}
    assert [found[id_] for id_ in ids] == [one.type for one in given]
    again = await node.tasks.submit_batch(DEFAULT_TENANT, [one for one in given if one.idempotency_key], now=NOW)
    assert again == ids[::3]


async def test_a_batch_with_invalid_tasks_is_refused_and_the_error_names_them(node: SteppedNode) -> None:
    given = [make_input(type="work"), make_input(type="bad name"), make_input(type="work", labels={"": "x"})]
    with pytest.raises(InvalidInput) as caught:
        await node.tasks.submit_batch(DEFAULT_TENANT, given, now=NOW)
    assert {error.field.partition(".")[0] for error in caught.value.errors} == {"tasks[1]", "tasks[2]"}
    with pytest.raises(TooLarge) as large:
        await node.tasks.submit_batch(DEFAULT_TENANT, [*given[:1], make_input(type="work", payload="x" * 70_000)], now=NOW)
    assert large.value.errors[0].field.startswith("tasks[1]")
    assert await count_rows(node.store, "tasks") == 0


async def test_a_batch_whose_key_was_used_for_another_task_is_refused(node: SteppedNode) -> None:
    await submit(node, key="taken")
    given = [make_input(type="work"), make_input(type="other", idempotency_key="taken")]
    with pytest.raises(InvalidInput) as caught:
        await node.tasks.submit_batch(DEFAULT_TENANT, given, now=NOW)
    assert [error.field for error in caught.value.errors] == ["tasks[1].idempotency_key"]
    assert await count_rows(node.store, "tasks") == 1


async def test_a_key_twice_in_a_batch_is_one_task_or_is_refused(node: SteppedNode) -> None:
    same = make_input(type="work", idempotency_key="k")
    ids = await node.tasks.submit_batch(DEFAULT_TENANT, [same, same], now=NOW)
    assert (len(set(ids)), await count_rows(node.store, "tasks")) == (1, 1)
    other = make_input(type="other", idempotency_key="q")
    with pytest.raises(InvalidInput):
        await node.tasks.submit_batch(DEFAULT_TENANT, [other, make_input(type="work", idempotency_key="q")], now=NOW)


async def test_a_key_for_the_whole_batch_creates_it_once(node: SteppedNode) -> None:
    given = [make_input(type="a"), make_input(type="b", idempotency_key="own"), make_input(type="c")]
    key = TaskKey("batch", b"fingerprint")
    first = await node.tasks.submit_batch(DEFAULT_TENANT, given, key=key, now=NOW)
    assert await node.tasks.submit_batch(DEFAULT_TENANT, given, key=key, now=NOW) == first
    assert await count_rows(node.store, "tasks") == 3
    with pytest.raises(InvalidInput, match="Idempotency-Key"):
        await node.tasks.submit_batch(DEFAULT_TENANT, given, key=TaskKey("batch", b"other"), now=NOW)


async def test_concurrent_batches_with_one_key_each_are_written_together_and_once(store: Store) -> None:
    """A repeated batch, and a task whose key was used before, change nothing for the batches that share their write."""
    counting = CountingStore(store)
    node = SteppedNode(counting)
    known, _ = await node.tasks.submit(DEFAULT_TENANT, make_input(type="known"), key="known")

    def batch(number: int) -> Any:
        given = [make_input(type=f"{number}-{index}") for index in range(3)]
        return node.tasks.submit_batch(DEFAULT_TENANT, given, key=TaskKey(f"batch-{number}", b"%d" % number))

    counting.sizes.clear()
    *batches, again = await asyncio.gather(
        *(batch(number) for number in [*range(5), 3]),
        node.tasks.submit(DEFAULT_TENANT, make_input(type="known"), key="known"),
    )
    assert batches[5] == batches[3]
    assert len({id_ for ids in batches for id_ in ids}) == 15
    assert again == (known, False)
    assert await count_rows(store, "tasks") == 16
    assert await count_rows(store, "task_keys") == 6
    assert counting.sizes == [19, 15, 3, 1], "first all together, then the two requests with conflicts alone"


@pytest.mark.parametrize("count", [0, MAX_SUBMITTED + 1])
async def test_batches_that_are_empty_or_too_long_are_refused(node: SteppedNode, count: int) -> None:
    with pytest.raises(InvalidInput, match="tasks"):
        await node.tasks.submit_batch(DEFAULT_TENANT, [make_input(type="work")] * count, now=NOW)


async def test_the_longest_batch_is_written(node: SteppedNode) -> None:
    ids = await submit_many(node, MAX_SUBMITTED)
    assert len(set(ids)) == MAX_SUBMITTED
    assert await node.store.task_depths() == [QueueDepth("default", "ready", MAX_SUBMITTED)]


# Cancelling


@pytest.mark.parametrize("more", [{}, {"delay_seconds": 60}])
async def test_a_task_that_has_not_started_is_cancelled_immediately(
    node: SteppedNode, worker: Worker, more: dict[str, Any]
) -> None:
    task = await submit(node, **more)
    node.move_to(NOW + seconds(1))
    cancelled = await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    assert (cancelled.state, cancelled.finished_at, cancelled.started_at) == (TaskState.CANCELLED, NOW + seconds(1), None)
    await node.promote(NOW + minutes(5))
    assert await worker.claim() == []
    assert await outcomes_of(node, task) == []
    assert node.events_of(TasksFinished) == [TasksFinished("cancelled", 1)]
    assert await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now) == cancelled, "a repeated cancel changes nothing"
    assert len(node.events_of(TasksFinished)) == 1


async def test_a_running_task_gets_a_cancel_request(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    claimed = await worker.claim_one()
    requested = await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    assert (requested.state, requested.cancel_requested) == (TaskState.RUNNING, True)
    assert await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now) == requested
    assert (await worker.heartbeat(claimed)).status == "cancel"


async def test_a_task_between_two_attempts_is_cancelled_and_keeps_its_attempts(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    await worker.fail(await worker.claim_one(), retry_in_seconds=60)
    cancelled = await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    assert cancelled.state is TaskState.CANCELLED
    assert await outcomes_of(node, task) == [(1, "failed")]


@pytest.mark.parametrize("ending", ["completed", "dead"])
async def test_a_finished_task_cannot_be_cancelled(node: SteppedNode, worker: Worker, ending: str) -> None:
    task = await submit(node, max_attempts=1)
    claimed = await worker.claim_one()
    await (worker.complete(claimed) if ending == "completed" else worker.fail(claimed))
    with pytest.raises(Conflict, match=ending):
        await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)


async def test_unknown_tasks_and_those_of_other_tenants_are_not_found(node: SteppedNode) -> None:
    task = await submit(node)
    for tenant, id_ in ((DEFAULT_TENANT, uuid4()), (OTHER_TENANT, task.id)):
        for call in (
            node.tasks.get(tenant, id_),
            node.tasks.attempts(tenant, id_),
            node.tasks.log(tenant, id_, after=None, limit=1),
            node.tasks.cancel(tenant, id_, now=NOW),
            node.tasks.retry(tenant, id_, now=NOW),
            node.tasks.reschedule(tenant, id_, NOW, now=NOW),
        ):
            with pytest.raises(NotFound):
                await call
    assert (await get(node, task)).state is TaskState.READY


async def test_a_cancel_concurrent_with_a_claim_cancels_or_requests(store: Store) -> None:
    """Each task is either cancelled before a worker claims it, or running with a cancel request."""
    second_store = open_second_store(store)
    node, other = SteppedNode(store), SteppedNode(second_store)
    ids = await submit_many(node, 30)
    worker = Worker(other)
    _, *cancelled = await asyncio.gather(worker.claim(30), *(node.tasks.cancel(DEFAULT_TENANT, id_, now=NOW) for id_ in ids))
    for task in cancelled:
        assert isinstance(task, TaskRecord)
        assert task.state is TaskState.CANCELLED or task.cancel_requested
    assert await worker.claim(30) == []
    await second_store.close()


# Retrying and rescheduling


async def test_retrying_a_finished_task_creates_a_new_task(node: SteppedNode, worker: Worker) -> None:
    first = await submit(node, payload={"a": 1}, labels={"x": "y"}, priority=3, max_attempts=1, timeout_seconds=9)
    await worker.fail(await worker.claim_one())
    again = await node.tasks.retry(DEFAULT_TENANT, first.id, now=NOW + minutes(1))
    assert (again.id != first.id, again.state, again.attempt, again.origin) == (True, TaskState.READY, 0, Origin.REPLAY)
    assert (again.payload, again.labels, again.priority, again.timeout_seconds) == (b'{"a":1}', {"x": "y"}, 3, 9)
    assert await get(node, again) == again
    assert (await get(node, first)).state is TaskState.DEAD, "the first task does not change"


async def test_a_live_task_cannot_be_retried(node: SteppedNode) -> None:
    task = await submit(node)
    with pytest.raises(Conflict, match="ready"):
        await node.tasks.retry(DEFAULT_TENANT, task.id, now=NOW)


async def test_a_retry_with_an_idempotency_key_creates_one_task(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    await worker.complete(await worker.claim_one())
    key = TaskKey("retry", b"x")
    first = await node.tasks.retry(DEFAULT_TENANT, task.id, key=key, now=NOW)
    assert (await node.tasks.retry(DEFAULT_TENANT, task.id, key=key, now=NOW)).id == first.id


async def test_a_task_is_rescheduled_later_and_earlier(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    later = await node.tasks.reschedule(DEFAULT_TENANT, task.id, NOW + minutes(5), now=NOW)
    assert (later.state, later.run_at) == (TaskState.SCHEDULED, NOW + minutes(5))
    assert await worker.claim() == []
    sooner = await node.tasks.reschedule(DEFAULT_TENANT, task.id, NOW - minutes(5), now=NOW)
    assert sooner.state is TaskState.READY
    assert (await worker.claim_one()).id == task.id
    with pytest.raises(Conflict, match="running"):
        await node.tasks.reschedule(DEFAULT_TENANT, task.id, NOW, now=NOW)


async def test_a_held_or_finished_task_cannot_be_rescheduled(node: SteppedNode, worker: Worker) -> None:
    await node.put(overlap="queue")
    await node.run(NOW + minutes(2), by_seconds=60)
    (done,) = await worker.claim(10)
    (held,) = (await node.tasks.page(DEFAULT_TENANT, TaskFilter(state="held"), before=None, limit=10)).tasks
    with pytest.raises(Conflict, match="held"):
        await node.tasks.reschedule(DEFAULT_TENANT, held.id, NOW, now=node.now)
    await worker.complete(done)
    with pytest.raises(Conflict, match="completed"):
        await node.tasks.reschedule(DEFAULT_TENANT, done.id, NOW, now=node.now)

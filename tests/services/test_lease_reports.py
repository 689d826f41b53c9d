"""Complete, fail and release: each changes the task once, under its lease; a repeated report has the same response."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from everbeat.core.errors import NotFound
from everbeat.core.protocol import (
    ErrorInput,
    Lease,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    LeaseResult,
    raw_json,
)
from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.submissions import MAX_ERROR_CHARACTERS, MAX_RESULT_BYTES, MAX_TRACE_CHARACTERS
from everbeat.core.tasks import LeasedTask, TaskState
from everbeat.services.events import AttemptEnded, TasksFinished
from everbeat.store.base import Store
from everbeat.store.values import DeadFilter, QueueDepth
from tests.factories import NOW, OTHER_TENANT, SteppedNode, StoreOverride, count_rows, seconds
from tests.services.workers import Worker, attempts, error_of, get, outcomes_of, submit, submit_many

FIXED = Retry(kind=RetryKind.FIXED, base_seconds=10, jitter=False)


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


@pytest.fixture
def worker(node: SteppedNode) -> Worker:
    return Worker(node)


# Completing


async def test_a_completed_task_keeps_its_result_and_its_fields(node: SteppedNode, worker: Worker) -> None:
    await submit(node, payload={"n": 1}, labels={"team": "a"})
    task = await worker.claim_one()
    node.move_to(NOW + seconds(5))
    assert await worker.complete(task, result={"rows": [1, None, "ü"]}) == ["ok"]
    done = await get(node, task)
    assert (done.state, done.attempt, done.worker, done.labels) == (TaskState.COMPLETED, 1, "worker", {"team": "a"})
    assert (done.started_at, done.finished_at) == (NOW, NOW + seconds(5))
    assert msgspec.json.decode(done.result or b"") == {"rows": [1, None, "ü"]}
    assert await outcomes_of(node, task) == [(1, "completed")]
    assert await count_rows(node.store, "tasks") == 0
    assert node.events_of(TasksFinished) == [TasksFinished("completed", 1)]


async def test_a_repeated_completion_has_the_same_response(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    assert [await worker.complete(task, result=number) for number in range(5)] == [["ok"]] * 5
    assert (await get(node, task)).result == b"0", "the first one counts"
    assert await count_rows(node.store, "task_history") == 1
    assert node.events_of(TasksFinished) == [TasksFinished("completed", 1)]
    node.move_to(NOW + timedelta(days=2))
    assert await worker.complete(task) == ["ok"], "also much later"


async def test_a_worker_that_was_paused_past_its_lease_gets_stale(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    old = await worker.claim_one()
    await node.reap(NOW + seconds(31))
    assert await worker.complete(old, result="old") == ["stale"]
    new = await Worker(node, "other").claim_one()
    assert (new.id, new.attempt, new.fence > old.fence) == (old.id, 2, True)
    assert await worker.complete(old, result="old") == ["stale"]
    assert await worker.complete(new, result="new") == ["ok"]
    assert await worker.complete(old, result="old") == ["stale"]
    assert (await get(node, new)).result == b'"new"'


async def test_an_expired_lease_completes_nothing_even_before_it_is_reaped(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    node.move_to(NOW + seconds(30))
    assert await worker.complete(task) == ["stale"]
    assert await worker.fail(task) == LeaseResult(task.id, "stale")
    assert await worker.release(task) == ["stale"]
    assert (await get(node, task)).state is TaskState.RUNNING
    await node.reap()
    assert await outcomes_of(node, task) == [(1, "lost")]


@pytest.mark.parametrize("fence", [0, 2, 2**63 - 1])
async def test_a_fence_that_is_not_the_current_one_changes_nothing(node: SteppedNode, worker: Worker, fence: int) -> None:
    await submit(node)
    task = await worker.claim_one()
    other = Lease(id=task.id, fence=fence)
    assert await worker.complete(other) == ["stale"]
    assert (await worker.fail(other)).status == "stale"
    assert await worker.release(other) == ["stale"]
    assert await worker.complete(task) == ["ok"]


async def test_an_unknown_id_or_one_of_another_tenant_is_stale(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    unknown, other = Lease(id=uuid4(), fence=1), Worker(node, tenant_id=OTHER_TENANT)
    assert [await worker.complete(unknown), await other.complete(task)] == [["stale"], ["stale"]]
    assert [await worker.release(unknown), await other.release(task)] == [["stale"], ["stale"]]
    assert [(await worker.fail(unknown)).status, (await other.fail(task)).status] == ["stale", "stale"]
    assert await worker.complete(task) == ["ok"]
    assert await other.complete(task) == ["stale"], "nor is the other tenant informed of the completion"
    with pytest.raises(NotFound):
        await node.tasks.get(OTHER_TENANT, task.id)


async def test_of_a_batch_only_valid_completions_count(node: SteppedNode, worker: Worker) -> None:
    await submit_many(node, 4)
    a, b, c, d = await worker.claim(4)
    await worker.complete(a)
    await worker.fail(b, retry_in_seconds=60)
    assert await worker.complete(a, b, c, Lease(id=d.id, fence=d.fence + 1), c) == ["ok", "stale", "ok", "stale", "ok"]
    states = [(await get(node, task)).state.value for task in (a, b, c, d)]
    assert states == ["completed", "scheduled", "completed", "running"]


async def test_an_empty_batch_has_an_empty_response(node: SteppedNode, worker: Worker) -> None:
    assert await worker.complete() == []
    assert await worker.release() == []
    assert await node.leases.fail(DEFAULT_TENANT, LeaseFailRequest(worker="worker", failures=[]), now=NOW) == []


async def test_a_result_of_fifty_megabytes_is_truncated_with_a_note(node: SteppedNode, worker: Worker) -> None:
    await submit(node)
    task = await worker.claim_one()
    assert await worker.complete(task, result={"text": "ü" * 25_000_000}) == ["ok"]
    kept = (await get(node, task)).result
    assert kept is not None
    assert len(kept) < MAX_RESULT_BYTES
    note = msgspec.json.decode(kept)
    assert (note["cut"], note["bytes"] > 50_000_000, note["start"][:12]) == (True, True, '{"text":"üüü')
    assert str(MAX_RESULT_BYTES) in note["note"]


async def test_a_result_up_to_the_limit_is_kept_complete(node: SteppedNode, worker: Worker) -> None:
    await submit_many(node, 2)
    fits, over = await worker.claim(2)
    assert await worker.complete(fits, result="x" * (MAX_RESULT_BYTES - 2)) == ["ok"]
    assert await worker.complete(over, result="x" * (MAX_RESULT_BYTES - 1)) == ["ok"]
    assert len((await get(node, fits)).result or b"") == MAX_RESULT_BYTES
    assert msgspec.json.decode((await get(node, over)).result or b"")["cut"] is True


@pytest.mark.parametrize("result", [0, False, "", [], {}, "a\x00b", 2**70, 1e308, {"\U0001f600": None}])
async def test_unusual_results_are_returned_unchanged(node: SteppedNode, worker: Worker, result: Any) -> None:
    await submit(node)
    task = await worker.claim_one()
    assert await worker.complete(task, result=result) == ["ok"]
    assert msgspec.json.decode((await get(node, task)).result or b"") == result


async def live_tasks(node: SteppedNode, count: int) -> list[Lease]:
    """Return leases that are valid by the database's own clock, which group commit uses."""
    node.move_to(await node.store.clock())
    await submit_many(node, count)
    return [Lease(id=task.id, fence=task.fence) for task in await Worker(node).claim(count, lease_seconds=300)]


def completion(lease: Lease, result: Any = None) -> LeaseCompleteRequest:
    return LeaseCompleteRequest(
        worker="worker", results=[LeaseCompletion(id=lease.id, fence=lease.fence, result=raw_json(result))]
    )


async def test_concurrent_completions_each_get_their_own_response(node: SteppedNode) -> None:
    leases = await live_tasks(node, 30)
    stale = [Lease(id=lease.id, fence=lease.fence + 1) for lease in leases[:5]]
    calls = [*leases, *leases, *stale]
    responses = await asyncio.gather(*(node.leases.complete(DEFAULT_TENANT, completion(lease)) for lease in calls))
    assert [one.status for (one,) in responses] == ["ok"] * 60 + ["stale"] * 5
    assert await count_rows(node.store, "task_history") == 30
    assert sum(event.count for event in node.events_of(TasksFinished)) == 30


async def test_a_concurrent_completion_by_another_tenant_is_stale(node: SteppedNode) -> None:
    first, second, third = await live_tasks(node, 3)
    for lease, order in ((second, (OTHER_TENANT, DEFAULT_TENANT)), (third, (DEFAULT_TENANT, OTHER_TENANT))):
        responses = await asyncio.gather(
            node.leases.complete(DEFAULT_TENANT, completion(first)),  # delays the others, so that they are written together
            *(node.leases.complete(tenant, completion(lease, str(tenant))) for tenant in order),
        )
        assert {tenant: one.status for tenant, (one,) in zip(order, responses[1:], strict=True)} == {
            DEFAULT_TENANT: "ok",
            OTHER_TENANT: "stale",
        }
        (found,) = await node.store.task_find(DEFAULT_TENANT, [lease.id])
        assert found.result == msgspec.json.encode(str(DEFAULT_TENANT))


# Failing


async def test_a_failed_task_is_retried_after_the_backoff_until_it_is_dead(store: Store) -> None:
    node = SteppedNode(store, random_fraction=lambda: 0.5)
    worker = Worker(node)
    task = await submit(node, max_attempts=4, retry=Retry(base_seconds=8, factor=3))
    delays = []
    for number in (1, 2, 3):
        claimed = await worker.claim_one()
        assert claimed.attempt == number
        assert await worker.fail(claimed, f"failure {number}", kind="ValueError") == LeaseResult(task.id, "ok", "retry")
        again = await get(node, task)
        assert (again.state, error_of(again)["message"]) == (TaskState.SCHEDULED, f"failure {number}")
        delays.append((again.run_at - node.now).total_seconds())
        await node.promote(again.run_at - seconds(0.001))
        assert await worker.claim() == [], "not before its time"
        await node.promote(again.run_at)
    assert delays == [4, 12, 36], "half of 8, 24 and 72: full jitter with a random fraction of one half"
    last = await worker.claim_one()
    assert await worker.fail(last, "failure 4", trace="line 1") == LeaseResult(task.id, "ok", "dead")
    dead = await get(node, task)
    assert (dead.state, dead.attempt, error_of(dead)["message"]) == (TaskState.DEAD, 4, "failure 4")
    assert await outcomes_of(node, task) == [(number, "failed") for number in (1, 2, 3, 4)]
    assert [error_of(one)["message"] for one in await attempts(node, task)] == [f"failure {n}" for n in (1, 2, 3, 4)]


async def test_a_dead_task_has_a_dead_letter_with_its_payload_and_the_reason(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, payload={"account": 7}, max_attempts=1, labels={"a": "b"}, priority=3, timeout_seconds=50)
    node.move_to(NOW + seconds(1))
    await worker.fail(await worker.claim_one(), "no such account")
    letter = await node.dead_letters.get(DEFAULT_TENANT, task.id)
    assert (letter.payload, letter.labels, letter.priority, letter.timeout_seconds) == (b'{"account":7}', {"a": "b"}, 3, 50)
    assert (letter.attempt, letter.max_attempts, letter.worker) == (1, 1, "worker")
    assert (letter.created_at, letter.died_at, letter.replays) == (NOW, NOW + seconds(1), 0)
    assert "its only attempt failed" in letter.reason
    assert (await get(node, task)).reason == letter.reason
    assert msgspec.json.decode(letter.error or b"")["message"] == "no such account"


async def test_a_failure_that_is_not_retryable_is_dead_immediately(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, max_attempts=5)
    assert (await worker.fail(await worker.claim_one(), retryable=False)).next == "dead"
    letter = await node.dead_letters.get(DEFAULT_TENANT, task.id)
    assert (letter.attempt, letter.max_attempts) == (1, 5)
    assert "not retryable" in letter.reason


@pytest.mark.parametrize(("retry_in", "state"), [(0, TaskState.READY), (0.5, TaskState.SCHEDULED), (5000, TaskState.SCHEDULED)])
async def test_a_worker_may_choose_the_time_of_the_retry(
    node: SteppedNode, worker: Worker, retry_in: float, state: TaskState
) -> None:
    task = await submit(node, retry=FIXED)
    assert (await worker.fail(await worker.claim_one(), retry_in_seconds=retry_in)).next == "retry"
    again = await get(node, task)
    assert (again.state, again.run_at) == (state, NOW + seconds(retry_in))


async def test_a_repeated_failure_has_the_same_response(node: SteppedNode, worker: Worker) -> None:
    retried = await submit(node, "retried", retry=FIXED)
    claimed = await worker.claim_one()
    assert [(await worker.fail(claimed)).next for _ in range(5)] == ["retry"] * 5
    assert await outcomes_of(node, retried) == [(1, "failed")]
    dead = await submit(node, "dead", max_attempts=1)
    last = await worker.claim_one()
    assert [(await worker.fail(last)).next for _ in range(5)] == ["dead"] * 5
    assert await outcomes_of(node, dead) == [(1, "failed")]
    assert len(node.events_of(AttemptEnded)) == 2
    assert len(await node.dead_letters.page(DEFAULT_TENANT, DeadFilter(), before=None, limit=10)) == 1
    await node.promote(NOW + seconds(10))
    again = await worker.claim_one()
    assert (await worker.fail(claimed)).next == "retry", "also while the next attempt runs"
    await worker.complete(again)
    assert (await worker.fail(claimed)).next == "retry", "and after the task has finished"
    assert (await get(node, retried)).state is TaskState.COMPLETED


async def test_a_different_report_under_the_same_fence_is_stale(node: SteppedNode, worker: Worker) -> None:
    await submit_many(node, 3, retry=FIXED)
    completed, failed, released = await worker.claim(3)
    await worker.complete(completed)
    await worker.fail(failed)
    await worker.release(released)
    assert (await worker.fail(completed)).status == "stale"
    assert await worker.release(completed) == ["stale"]
    assert await worker.complete(failed) == ["stale"]
    assert await worker.release(failed) == ["stale"]
    assert await worker.complete(released) == ["stale"]
    assert (await worker.fail(released)).status == "stale"
    states = [(await get(node, task)).state.value for task in (completed, failed, released)]
    assert states == ["completed", "scheduled", "ready"]


async def test_a_failure_after_a_cancel_is_failed_and_not_retried(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, max_attempts=5)
    claimed = await worker.claim_one()
    await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    responses = [await worker.fail(claimed, "it broke") for _ in range(3)]
    assert responses == [LeaseResult(task.id, "ok", "failed")] * 3
    failed = await get(node, task)
    assert (failed.state, error_of(failed)["message"]) == (TaskState.FAILED, "it broke")
    assert "cancel" in (failed.reason or "")
    assert await outcomes_of(node, task) == [(1, "failed")]
    assert await node.dead_letters.page(DEFAULT_TENANT, DeadFilter(), before=None, limit=10) == []


async def test_a_worker_that_stops_after_a_cancel_request_leaves_a_cancelled_task(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    claimed = await worker.claim_one()
    await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    responses = [await worker.fail(claimed, "cancelled", kind="cancelled") for _ in range(3)]
    assert [response.status for response in responses] == ["ok"] * 3
    assert len({response.next for response in responses}) == 1
    assert (await get(node, task)).state is TaskState.CANCELLED
    assert await outcomes_of(node, task) == [(1, "cancelled")]


async def test_a_task_completed_after_a_cancel_request_is_completed(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    claimed = await worker.claim_one()
    await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    assert await worker.complete(claimed, result=1) == ["ok"]
    assert (await get(node, task)).state is TaskState.COMPLETED


async def test_reporting_cancelled_without_a_cancel_request_is_a_failure(node: SteppedNode, worker: Worker) -> None:
    await submit(node, retry=FIXED)
    assert (await worker.fail(await worker.claim_one(), kind="cancelled")).next == "retry"


class CancellingStore(StoreOverride):
    """After each query for running or expired tasks, a user cancels the found tasks."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_enabled = False

    async def _cancel(self, found: tuple[datetime, list[LeasedTask]]) -> tuple[datetime, list[LeasedTask]]:
        if self.is_enabled:
            for task in found[1]:
                assert task.id in (await self.inner.task_cancel(task.tenant_id, [task.id], now=found[0])).requested
        return found

    async def task_running(self, *given: Any, **more: Any) -> tuple[datetime, list[LeasedTask]]:
        return await self._cancel(await self.inner.task_running(*given, **more))

    async def task_expired(self, *given: Any, **more: Any) -> tuple[datetime, list[LeasedTask]]:
        return await self._cancel(await self.inner.task_expired(*given, **more))


@pytest.mark.parametrize("ending", ["fail", "release", "expire"])
async def test_a_cancel_between_reading_and_ending_an_attempt_takes_effect(store: Store, ending: str) -> None:
    """The cancel arrives while the end of the attempt is being written. The task must not start again."""
    cancelling = CancellingStore(store)
    node = SteppedNode(cancelling)
    worker = Worker(node)
    task = await submit(node, max_attempts=5)
    claimed = await worker.claim_one()
    cancelling.is_enabled = True
    match ending:
        case "fail":
            assert (await worker.fail(claimed, retry_in_seconds=0)).status == "ok"
        case "release":
            assert await worker.release(claimed) == ["ok"]
        case _:
            await node.reap(NOW + seconds(31))
            await node.reap()
    assert await worker.claim() == [], "no attempt starts after an acknowledged cancel"
    assert (await get(node, task)).state in (TaskState.FAILED, TaskState.CANCELLED)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_report_after_the_reaper_is_not_a_repetition(node: SteppedNode, worker: Worker, is_cancelled: bool) -> None:
    """The reaper has ended the attempt as cancelled or timed out. The late error is not stored, so the status is not `ok`."""
    task = await submit(node, timeout_seconds=20)
    claimed = await worker.claim_one()
    if is_cancelled:
        await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    node.move_to(NOW + seconds(31))
    assert (await worker.fail(claimed, "broke")).status == "stale"
    await node.reap()
    assert (await worker.fail(claimed, "broke")).status == "stale"
    assert await worker.complete(claimed) == ["stale"]
    assert (await get(node, task)).state is (TaskState.CANCELLED if is_cancelled else TaskState.SCHEDULED)


async def test_a_worker_may_report_a_timeout(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, retry=FIXED)
    claimed = await worker.claim_one()
    assert [(await worker.fail(claimed, "too slow", kind="timeout")).next for _ in range(3)] == ["retry"] * 3
    assert await outcomes_of(node, task) == [(1, "timeout")]


async def test_errors_are_truncated_with_a_note(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, max_attempts=1)
    claimed = await worker.claim_one()
    message, trace = "m" * 50_000_000, "start" + "t" * 50_000_000 + "end"
    assert (await worker.fail(claimed, message, kind="k" * 1000, trace=trace)).next == "dead"
    error = error_of(await get(node, task))
    assert len(error["message"]) < MAX_ERROR_CHARACTERS + 100
    assert error["message"].endswith(f"{50_000_000 - MAX_ERROR_CHARACTERS} characters truncated")
    assert len(error["trace"]) < MAX_TRACE_CHARACTERS + 100
    assert (error["trace"][:1], error["trace"][-4:]) == ("…", "tend")
    assert error["kind"] == "k" * 200


async def test_errors_with_unusual_characters_are_kept(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, max_attempts=1)
    await worker.fail(await worker.claim_one(), "a\x00b\ud800c", kind="\x00", trace="\udfff")
    error = error_of(await get(node, task))
    assert (error["message"][:3], error["message"][-1], error["kind"]) == ("a\x00b", "c", "\x00")


async def test_each_failure_of_a_batch_is_decided_separately(node: SteppedNode, worker: Worker) -> None:
    await submit(node, "once", max_attempts=1)
    await submit(node, "again", retry=FIXED)
    await submit(node, "never", max_attempts=9)
    tasks = await worker.claim(3)
    error = ErrorInput(message="broke")
    failures = [LeaseFailure(id=task.id, fence=task.fence, error=error, retryable=task.type != "never") for task in tasks]
    unknown = LeaseFailure(id=UUID(int=5), fence=1, error=error)
    given = LeaseFailRequest(worker="worker", failures=[*failures, unknown, failures[0]])
    responses = await node.leases.fail(DEFAULT_TENANT, given, now=NOW)
    assert [(response.status, response.next) for response in responses] == [
        ("ok", "dead"),
        ("ok", "retry"),
        ("ok", "dead"),
        ("stale", None),
        ("ok", "dead"),
    ]


# Releasing


async def test_a_released_task_is_ready_immediately_and_the_attempt_does_not_count(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node, max_attempts=2)
    for number in range(1, 8):
        claimed = await worker.claim_one()
        assert (claimed.attempt, claimed.fence) == (1, number)
        assert await worker.release(claimed) == ["ok"]
        assert await worker.release(claimed) == ["ok"], "also when the report is repeated"
    again = await get(node, task)
    assert (again.state, again.attempt) == (TaskState.READY, 0)
    assert await outcomes_of(node, task) == [(1, "released")] * 7
    assert await node.store.task_depths() == [QueueDepth("default", "ready", 1)]


async def test_releasing_a_task_after_a_cancel_request_cancels_it(node: SteppedNode, worker: Worker) -> None:
    task = await submit(node)
    claimed = await worker.claim_one()
    await node.tasks.cancel(DEFAULT_TENANT, task.id, now=node.now)
    assert [await worker.release(claimed) for _ in range(2)] == [["ok"], ["ok"]]
    assert (await get(node, task)).state is TaskState.CANCELLED

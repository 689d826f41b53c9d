"""Bulk operations on both stores: every action, progress, a crash in the middle of a page, cancellation."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from everbeat.core.access import LOCAL_CALLER
from everbeat.core.bulk import BulkAction, BulkOperation, BulkState
from everbeat.core.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from everbeat.core.protocol import LeaseClaimRequest, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT, Status
from everbeat.core.tasks import Origin, TaskState
from everbeat.services.bulk import BulkFilter, BulkRequest, BulkRunner
from everbeat.store.base import Store
from everbeat.store.values import ScheduleFilter, TaskFilter, TaskMatch
from tests.factories import NOW, OTHER_TENANT, SteppedNode, StoreOverride, seconds

ALL_TASKS = TaskMatch(queue="default")


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


class CrashingStore(StoreOverride):
    """A store whose process crashes at the next step, before or after the database has executed it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.crashes_at: int | None = None
        self.steps = 0

    async def bulk_advance(self, *arguments: Any, **more: Any) -> Any:
        self.steps += 1
        if self.steps == self.crashes_at:
            raise StoreUnavailable("crashed before the write")
        result = await self.inner.bulk_advance(*arguments, **more)
        if self.crashes_at is not None and self.steps == -self.crashes_at:
            raise StoreUnavailable("crashed after the write")
        return result


def runner_of(node: SteppedNode, store: Any = None, page_size: int = 3) -> BulkRunner:
    return BulkRunner(store or node.store, node.schedules, node.tasks, node.backfill, page_size=page_size, lease_seconds=20)


async def start(node: SteppedNode, action: BulkAction, filter_: BulkFilter, **more: Any) -> BulkOperation:
    key = more.pop("key", None)
    request = BulkRequest(action, filter_, **more)
    return await node.engine.bulk.create(DEFAULT_TENANT, request, key=key, by=LOCAL_CALLER, now=node.now)


async def run(runner: BulkRunner, now: datetime = NOW) -> None:
    for _ in range(100):
        if not await runner.run_once(now):
            return
    raise AssertionError("the operation does not end")


async def ended(node: SteppedNode, operation: BulkOperation) -> tuple[BulkState, int, int, int]:
    found = await node.engine.bulk.get(DEFAULT_TENANT, operation.id)
    return found.state, found.matched, found.done, found.failed


async def submit(node: SteppedNode, count: int = 7, **more: Any) -> None:
    await node.tasks.submit_batch(DEFAULT_TENANT, [TaskInput(**{"type": "work", **more}) for _ in range(count)], now=node.now)


async def states(node: SteppedNode) -> list[str]:
    page = await node.tasks.page(DEFAULT_TENANT, TaskFilter(), before=None, limit=1000)
    return sorted(task.state.value for task in page.tasks)


async def statuses(node: SteppedNode) -> dict[str, Status]:
    page = await node.schedules.page(DEFAULT_TENANT, ScheduleFilter(), after_name=None, limit=100)
    return {one.spec.name: one.status for one in page}


async def test_tasks_are_cancelled_by_filter_and_running_ones_get_a_request(node: SteppedNode) -> None:
    await submit(node)
    await submit(node, 2, queue="mail")
    await node.leases.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w1", queues=["default"], max=2), now=NOW)
    operation = await start(node, BulkAction.CANCEL, ALL_TASKS)
    await run(runner_of(node))
    assert await ended(node, operation) == (BulkState.DONE, 7, 7, 0)
    assert await states(node) == ["cancelled"] * 5 + ["ready"] * 2 + ["running"] * 2
    page = await node.tasks.page(DEFAULT_TENANT, TaskFilter(state="running"), before=None, limit=10)
    assert all(task.cancel_requested for task in page.tasks)


async def test_finished_tasks_are_retried_once_each(node: SteppedNode) -> None:
    await submit(node)
    first = await start(node, BulkAction.CANCEL, ALL_TASKS)
    await run(runner_of(node))
    operation = await start(node, BulkAction.RETRY, TaskMatch(state="cancelled"))
    await run(runner_of(node))
    assert await ended(node, first) == await ended(node, operation) == (BulkState.DONE, 7, 7, 0)
    assert await states(node) == ["cancelled"] * 7 + ["ready"] * 7
    page = await node.tasks.page(DEFAULT_TENANT, TaskFilter(state="ready"), before=None, limit=10)
    assert {task.origin for task in page.tasks} == {Origin.REPLAY}


async def test_schedules_are_paused_resumed_triggered_and_deleted(node: SteppedNode) -> None:
    for number in range(5):
        await node.put(f"report-{number}")
    await node.put("other")
    reports = ScheduleFilter(name_prefix="report-")
    for action in (BulkAction.PAUSE, BulkAction.TRIGGER):
        operation = await start(node, action, reports, note="migration")
        await run(runner_of(node))
        assert await ended(node, operation) == (BulkState.DONE, 5, 5, 0)
    assert [name for name, status in (await statuses(node)).items() if status is Status.ACTIVE] == ["other"]
    assert (await node.schedules.get(DEFAULT_TENANT, "report-0")).note == "migration"
    page = await node.tasks.page(DEFAULT_TENANT, TaskFilter(), before=None, limit=10)
    assert [task.origin for task in page.tasks] == [Origin.TRIGGER] * 5
    await start(node, BulkAction.RESUME, reports)
    await run(runner_of(node))
    assert set((await statuses(node)).values()) == {Status.ACTIVE}
    operation = await start(node, BulkAction.DELETE, reports)
    await run(runner_of(node))
    assert await ended(node, operation) == (BulkState.DONE, 5, 5, 0)
    assert list(await statuses(node)) == ["other"]


@pytest.mark.parametrize("action", [BulkAction.CANCEL, BulkAction.RETRY, BulkAction.DELETE, BulkAction.TRIGGER])
@pytest.mark.parametrize("crashes_at", [1, -1, 2, -2, 4, -4, -5])
async def test_another_node_continues_after_a_crash_and_the_numbers_are_right(
    node: SteppedNode, action: BulkAction, crashes_at: int
) -> None:
    """Step 1 stores the first page, step 2 what was done with it, and so on."""
    await submit(node)
    for number in range(7):
        await node.put(f"report-{number}")
    if action is BulkAction.RETRY:
        await start(node, BulkAction.CANCEL, ALL_TASKS)
        await run(runner_of(node))
    is_task_action = action in (BulkAction.CANCEL, BulkAction.RETRY)
    operation = await start(node, action, ALL_TASKS if is_task_action else ScheduleFilter(name_prefix="report-"))
    store = CrashingStore(node.store)
    store.crashes_at = crashes_at
    with pytest.raises(StoreUnavailable):
        await run(runner_of(node, store))
    assert await runner_of(node).run_once(NOW + seconds(19)) is False
    await run(runner_of(node), NOW + seconds(21))
    assert await ended(node, operation) == (BulkState.DONE, 7, 7, 0)
    expected = {
        BulkAction.CANCEL: ["cancelled"] * 7,
        BulkAction.RETRY: ["cancelled"] * 7 + ["ready"] * 7,
        BulkAction.DELETE: ["ready"] * 7,
        BulkAction.TRIGGER: ["ready"] * 14,
    }
    assert await states(node) == expected[action]
    assert len(await statuses(node)) == (0 if action is BulkAction.DELETE else 7)


async def test_what_cannot_be_changed_is_counted_as_failed_with_its_reason(node: SteppedNode) -> None:
    await node.put("report-1")
    await node.put("report-2", cron=None, at="2026-03-02T12:00:30Z")
    await node.run(NOW + seconds(40), by_seconds=20)
    operation = await start(node, BulkAction.PAUSE, ScheduleFilter(name_prefix="report-"))
    await run(runner_of(node), node.now)
    assert await ended(node, operation) == (BulkState.DONE, 2, 1, 1)
    (error,) = (await node.engine.bulk.get(DEFAULT_TENANT, operation.id)).errors
    assert (error.subject, "finished" in error.message) == ("report-2", True)


async def test_only_what_existed_at_the_creation_is_changed(node: SteppedNode) -> None:
    await submit(node, 2)
    operation = await start(node, BulkAction.CANCEL, ALL_TASKS)
    await submit(node, 3)
    await run(runner_of(node))
    assert await ended(node, operation) == (BulkState.DONE, 2, 2, 0)
    assert await states(node) == ["cancelled"] * 2 + ["ready"] * 3


async def test_an_operation_is_cancelled_between_pages(node: SteppedNode) -> None:
    await submit(node)
    operation = await start(node, BulkAction.CANCEL, ALL_TASKS)
    runner = runner_of(node)
    await runner.run_once(NOW)
    await runner.run_once(NOW)
    cancelled = await node.engine.bulk.cancel(DEFAULT_TENANT, operation.id, by=LOCAL_CALLER, now=NOW)
    assert (cancelled.state, cancelled.done) == (BulkState.CANCELLED, 3)
    await run(runner)
    assert await states(node) == ["cancelled"] * 3 + ["ready"] * 4
    again = await node.engine.bulk.cancel(DEFAULT_TENANT, operation.id, by=LOCAL_CALLER, now=NOW)
    assert again.state is BulkState.CANCELLED
    with pytest.raises(NotFound):
        await node.engine.bulk.cancel(OTHER_TENANT, operation.id, by=LOCAL_CALLER, now=NOW)


async def test_an_unexpected_count_is_refused_and_changes_nothing(node: SteppedNode) -> None:
    await submit(node, 2)
    with pytest.raises(Conflict, match="2 tasks match, not 3"):
        await start(node, BulkAction.CANCEL, ALL_TASKS, expect_count=3)
    await run(runner_of(node))
    assert await states(node) == ["ready"] * 2


async def test_a_repeated_request_returns_the_same_operation(node: SteppedNode) -> None:
    await submit(node, 2)
    first = await start(node, BulkAction.CANCEL, ALL_TASKS, key="k", expect_count=2)
    await run(runner_of(node))
    second = await start(node, BulkAction.CANCEL, ALL_TASKS, key="k", expect_count=2)
    assert (second.id, second.state) == (first.id, BulkState.DONE)
    with pytest.raises(InvalidInput, match="Idempotency-Key"):
        await start(node, BulkAction.CANCEL, TaskMatch(queue="mail"), key="k")


async def test_a_live_task_is_not_retried(node: SteppedNode) -> None:
    await submit(node, 1)
    operation = await start(node, BulkAction.RETRY, TaskMatch(state=TaskState.READY.value))
    await run(runner_of(node))
    assert await ended(node, operation) == (BulkState.DONE, 0, 0, 0)

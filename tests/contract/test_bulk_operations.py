"""bulk_write, bulk_claim, bulk_advance, bulk_find, bulk_list, bulk_cancel and bulk_prune; task_match."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from everbeat.core.bulk import BulkAction, BulkError, BulkOperation, BulkProgress, BulkState, BulkSubject
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, TaskState
from everbeat.services.ids import new_ids
from everbeat.store.base import Store
from everbeat.store.values import TaskMatch
from tests.factories import NOW, OTHER_TENANT, claim, complete, make_task, minutes, seconds

A, B = UUID(int=1), UUID(int=2)


def an_operation(**more: Any) -> BulkOperation:
    values: dict[str, Any] = {
        "id": new_ids(1)[0],
        "tenant_id": DEFAULT_TENANT,
        "subject": BulkSubject.TASKS,
        "action": BulkAction.CANCEL,
        "filter": "{}",
        "note": None,
        "actor": "key ops",
        "key_id": None,
        "matched": 5,
        "position": "start",
        "created_at": NOW,
    }
    return BulkOperation(**{**values, **more})


async def claimed(store: Store, owner: UUID = A, *, after: float = 0) -> BulkOperation | None:
    return await store.bulk_claim(owner, lease_seconds=20, now=NOW + seconds(after))


async def advance(
    store: Store, operation: BulkOperation, progress: BulkProgress, owner: UUID = A, *, after: float = 0
) -> BulkOperation | None:
    return await store.bulk_advance(operation, progress, owner, lease_seconds=20, now=NOW + seconds(after))


async def test_bulk_find_returns_those_of_the_tenant(store: Store) -> None:
    operation = an_operation()
    assert await store.bulk_write(operation, now=NOW) is True
    assert await store.bulk_find(DEFAULT_TENANT, [operation.id]) == [operation]
    assert await store.bulk_find(OTHER_TENANT, [operation.id]) == []


async def test_bulk_write_stores_an_operation_once(store: Store) -> None:
    operation = an_operation()
    assert await store.bulk_write(operation, now=NOW) is True
    assert await store.bulk_write(msgspec.structs.replace(operation, matched=9), now=NOW) is False
    assert await store.bulk_find(DEFAULT_TENANT, [operation.id]) == [operation]


async def test_bulk_claim_gives_an_operation_to_one_node_until_its_lease_ends(store: Store) -> None:
    assert await claimed(store) is None
    operation = an_operation()
    await store.bulk_write(operation, now=NOW)
    assert await claimed(store, A) == operation
    assert await claimed(store, B, after=19.9) is None
    assert await claimed(store, B, after=20) == operation


async def test_bulk_claim_takes_an_operation_with_a_lease_of_a_clock_that_was_ahead(store: Store) -> None:
    operation = an_operation()
    await store.bulk_write(operation, now=NOW)
    assert await claimed(store, A, after=3600) == operation
    assert await claimed(store, B, after=3591) is None
    assert await claimed(store, B, after=0) == operation


async def test_bulk_advance_stores_the_page_and_then_what_was_done(store: Store) -> None:
    operation = an_operation()
    await store.bulk_write(operation, now=NOW)
    await claimed(store)
    selected = await advance(store, operation, BulkProgress("start", ("1", "2")))
    assert selected is not None
    assert (selected.page, selected.position, selected.done) == (("1", "2"), "start", 0)
    handled = await advance(store, selected, BulkProgress("2", (), 1, 1, (BulkError("2", "no"),)))
    assert handled is not None
    assert (handled.page, handled.position, handled.done, handled.failed) == ((), "2", 1, 1)
    assert handled.errors == (BulkError("2", "no"),)
    ended = await advance(store, handled, BulkProgress("2", (), state=BulkState.DONE), after=5)
    assert ended is not None
    assert (ended.state, ended.finished_at, ended.done, ended.failed) == (BulkState.DONE, NOW + seconds(5), 1, 1)
    assert await claimed(store, B, after=100) is None


async def test_bulk_advance_changes_nothing_if_another_node_has_continued(store: Store) -> None:
    operation = an_operation()
    await store.bulk_write(operation, now=NOW)
    await claimed(store, A)
    taken = await claimed(store, B, after=30)
    assert taken is not None
    assert await advance(store, operation, BulkProgress("2", (), 2), A) is None
    moved = await advance(store, taken, BulkProgress("start", ("1",)), B)
    assert moved is not None
    # The same step again: the response to the first one was lost.
    assert await advance(store, taken, BulkProgress("start", ("1",)), B) is None
    assert await store.bulk_find(DEFAULT_TENANT, [operation.id]) == [moved]


async def test_bulk_advance_renews_the_lease(store: Store) -> None:
    operation = an_operation()
    await store.bulk_write(operation, now=NOW)
    await claimed(store)
    await advance(store, operation, BulkProgress("start", ("1",)), after=15)
    assert await claimed(store, B, after=34.9) is None
    assert await claimed(store, B, after=35) is not None


async def test_bulk_cancel_ends_a_running_operation_once(store: Store) -> None:
    operation = an_operation()
    await store.bulk_write(operation, now=NOW)
    await claimed(store)
    assert await store.bulk_cancel(OTHER_TENANT, operation.id, now=NOW) is False
    assert await store.bulk_cancel(DEFAULT_TENANT, operation.id, now=NOW + seconds(1)) is True
    assert await store.bulk_cancel(DEFAULT_TENANT, operation.id, now=NOW + seconds(1)) is False
    assert await advance(store, operation, BulkProgress("2", (), 2)) is None
    (found,) = await store.bulk_find(DEFAULT_TENANT, [operation.id])
    assert (found.state, found.finished_at) == (BulkState.CANCELLED, NOW + seconds(1))


async def test_bulk_list_returns_the_newest_first(store: Store) -> None:
    operations = [an_operation(created_at=NOW + seconds(number)) for number in range(3)]
    for number, operation in enumerate(operations):
        await store.bulk_write(operation, now=NOW + seconds(number))
    await store.bulk_write(an_operation(tenant_id=OTHER_TENANT), now=NOW)
    first = await store.bulk_list(DEFAULT_TENANT, limit=2)
    assert first == operations[:0:-1]
    before = (first[-1].created_at, first[-1].id)
    assert await store.bulk_list(DEFAULT_TENANT, before=before, limit=2) == operations[:1]


async def test_bulk_prune_deletes_operations_that_ended_long_ago(store: Store) -> None:
    ended, running = an_operation(), an_operation()
    for operation in (ended, running):
        await store.bulk_write(operation, now=NOW)
    await store.bulk_cancel(DEFAULT_TENANT, ended.id, now=NOW)
    assert await store.bulk_prune(finished_seconds=60, limit=10, now=NOW + seconds(59)) == 0
    assert await store.bulk_prune(finished_seconds=60, limit=10, now=NOW + seconds(61)) == 1
    assert [one.id for one in await store.bulk_list(DEFAULT_TENANT, limit=10)] == [running.id]


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        (TaskMatch(), [0, 1, 2]),
        (TaskMatch(queue="mail"), [1]),
        (TaskMatch(type="other"), [2]),
        (TaskMatch(state="ready"), [0, 1]),
        (TaskMatch(label_key="team", label_value="a"), [0]),
        (TaskMatch(from_at=NOW, to_at=NOW + seconds(1)), [0, 1, 2]),
        (TaskMatch(from_at=NOW + seconds(1)), []),
        (TaskMatch(to_at=NOW), []),
        (TaskMatch(error_kind="TimeoutError"), []),
    ],
)
async def test_task_match_returns_the_live_tasks_of_the_filter(store: Store, filter_: TaskMatch, expected: list[int]) -> None:
    tasks = [
        make_task(labels='{"team":"a"}'),
        make_task(queue="mail", labels='{"team":"b"}'),
        make_task("other", run_at=NOW + minutes(1)),
    ]
    await store.task_submit([*tasks, make_task(tenant_id=OTHER_TENANT)], now=NOW)
    scan = await store.task_match(DEFAULT_TENANT, filter_, before=None, limit=10, live=True)
    assert scan.ids == sorted((tasks[index].id for index in expected), reverse=True)
    assert scan.scanned_to is None
    assert (await store.task_match(DEFAULT_TENANT, filter_, before=None, limit=10, live=False)).ids == []


async def test_task_match_finds_finished_tasks_by_the_kind_of_their_error(store: Store) -> None:
    tasks = [make_task() for _ in range(3)]
    await store.task_submit(tasks, now=NOW)
    first, second, third = await claim(store, limit=3, now=NOW)
    await complete(store, first)
    ends = [
        AttemptEnd(
            id=task.id,
            tenant_id=DEFAULT_TENANT,
            fence=task.fence,
            outcome=AttemptOutcome.FAILED,
            state=TaskState.DEAD,
            run_at=None,
            error=f'{{"message":"no","kind":"{kind}"}}',
        )
        for task, kind in ((second, "TimeoutError"), (third, "ValueError"))
    ]
    await store.task_end(ends, is_expired=False, now=NOW)

    async def found(**conditions: Any) -> set[UUID]:
        return set((await store.task_match(DEFAULT_TENANT, TaskMatch(**conditions), before=None, limit=10, live=False)).ids)

    assert await found() == {first.id, second.id, third.id}
    assert await found(error_kind="TimeoutError") == {second.id}
    assert await found(state="dead") == {second.id, third.id}


async def test_task_match_has_pages(store: Store) -> None:
    tasks = [make_task() for _ in range(5)]
    await store.task_submit(tasks, now=NOW)
    first = await store.task_match(DEFAULT_TENANT, TaskMatch(type="work"), before=None, limit=3, live=True)
    assert first.scanned_to == first.ids[-1]
    rest = await store.task_match(DEFAULT_TENANT, TaskMatch(type="work"), before=first.scanned_to, limit=3, live=True)
    assert (first.ids + rest.ids, rest.scanned_to) == (sorted((task.id for task in tasks), reverse=True), None)

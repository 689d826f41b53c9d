"""task_find, task_list and task_ticks: listing live and finished tasks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import uuid_utils.compat

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import NewTask, Origin, TaskState
from everbeat.store import shared
from everbeat.store.base import Store
from everbeat.store.values import TaskFilter, TaskScan
from tests.factories import NOW, OTHER_TENANT, claim, complete, make_task, minutes, seconds

SCHEDULE = UUID(int=9)


async def submit(store: Store, *tasks: NewTask, live: bool = True) -> list[NewTask]:
    """Submit the tasks and return them in the order of their ids. If `live` is false, finish them by cancelling them."""
    await store.task_submit(tasks, now=NOW)
    if not live:
        for tenant_id in {task.tenant_id for task in tasks}:
            await store.task_cancel(tenant_id, [task.id for task in tasks], now=NOW + minutes(1))
    return list(tasks)


async def listed(store: Store, *, live: bool = True, before: UUID | None = None, limit: int = 100, **filter_: Any) -> TaskScan:
    return await store.task_list(DEFAULT_TENANT, TaskFilter(**filter_), before=before, limit=limit, live=live)


async def types(store: Store, **more: Any) -> str:
    """Return the types of the listed tasks, newest first."""
    return "".join(task.type for task in (await listed(store, **more)).tasks)


async def test_task_find_returns_live_and_finished_tasks_of_the_tenant(store: Store) -> None:
    done, running, ready = await submit(store, make_task("a"), make_task("b"), make_task("c"))
    (theirs,) = await submit(store, make_task(tenant_id=OTHER_TENANT))
    await complete(store, *await claim(store, limit=1))
    await claim(store, limit=1)
    ids = [done.id, running.id, ready.id, theirs.id, UUID(int=5)]
    found = {task.type: task.state for task in await store.task_find(DEFAULT_TENANT, ids)}
    assert found == {"a": TaskState.COMPLETED, "b": TaskState.RUNNING, "c": TaskState.READY}
    assert await store.task_find(DEFAULT_TENANT, []) == []


@pytest.mark.parametrize("live", [True, False])
async def test_task_list_pages_newest_first(store: Store, live: bool) -> None:
    tasks = await submit(store, *(make_task(str(number)) for number in range(7)), live=live)
    await submit(store, make_task("x"), live=not live)
    first = await listed(store, live=live, limit=3)
    assert [task.type for task in first.tasks] == ["6", "5", "4"]
    second = await listed(store, live=live, limit=3, before=first.tasks[-1].id)
    assert [task.type for task in second.tasks] == ["3", "2", "1"]
    third = await listed(store, live=live, limit=3, before=second.tasks[-1].id)
    assert [task.type for task in third.tasks] == ["0"]
    assert {page.scanned_to for page in (first, second, third)} == {None}
    assert await listed(store, live=live, before=tasks[0].id) == TaskScan([], None)


@pytest.mark.parametrize("live", [True, False])
async def test_task_list_returns_the_same_fields_as_task_find(store: Store, live: bool) -> None:
    (task,) = await submit(
        store, make_task(payload=b"[1]", labels='{"a":"b"}', schedule_id=SCHEDULE, schedule_name="nightly"), live=live
    )
    found = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (await listed(store, live=live)).tasks == found
    assert (await listed(store, live=live, schedule_id=SCHEDULE)).tasks == found


@pytest.mark.parametrize("live", [True, False])
async def test_task_list_keeps_tenants_apart(store: Store, live: bool) -> None:
    await submit(store, make_task("o"), make_task("t", tenant_id=OTHER_TENANT, schedule_id=SCHEDULE), live=live)
    assert await types(store, live=live) == "o"
    assert await types(store, live=live, schedule_id=SCHEDULE) == ""
    assert await types(store, live=live, type="t") == ""


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "dcba"),
    ({"queue": "fast"}, "ca"),
    ({"type": "b"}, "b"),
    ({"type": "x"}, ""),
    ({"queue": "fast", "type": "b"}, ""),
    ({"schedule_id": SCHEDULE}, "cb"),
    ({"schedule_id": SCHEDULE, "queue": "fast"}, "c"),
    ({"schedule_id": UUID(int=5)}, ""),
    ({"label_key": "team"}, "dba"),
    ({"label_key": "team", "label_value": "red"}, "ba"),
    ({"label_key": "team", "label_value": "re"}, ""),
    ({"label_key": "tea"}, ""),
    ({"label_key": "red"}, ""),
    ({"label_key": "a.b", "label_value": 'say "ä" \\ %'}, "c"),
    ({"label_key": "number", "label_value": "7"}, "c"),
    ({"label_key": "team", "label_value": "red", "schedule_id": SCHEDULE}, "b"),
    ({"label_key": "team", "label_value": "red", "queue": "fast"}, "a"),
]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("filter_", "expected"), FILTERS)
async def test_task_list_filters(store: Store, filter_: dict[str, Any], expected: str, live: bool) -> None:
    await submit(
        store,
        make_task("a", queue="fast", labels='{"team":"red"}'),
        make_task("b", queue="slow", labels='{"team":"red","x":"team"}', schedule_id=SCHEDULE),
        make_task("c", queue="fast", labels='{"a.b":"say \\"ä\\" \\\\ %","number":"7"}', schedule_id=SCHEDULE),
        make_task("d", queue="slow", labels='{"team":"blue"}'),
        live=live,
    )
    assert await types(store, live=live, **filter_) == expected
    assert await types(store, live=live, limit=1, **filter_) == expected[:1]


async def test_task_list_filters_by_state(store: Store) -> None:
    await submit(store, *(make_task(type_, schedule_id=SCHEDULE) for type_ in "abc"), make_task("d", delay_seconds=60))
    await complete(store, *await claim(store, limit=1))
    await claim(store, limit=1)
    await submit(store, make_task("e"), live=False)
    assert await types(store, state="ready") == "c"
    assert await types(store, state="running") == "b"
    assert await types(store, state="scheduled") == "d"
    assert await types(store, state="ready", schedule_id=SCHEDULE) == "c"
    assert await types(store, live=False, state="completed") == "a"
    assert await types(store, live=False, state="cancelled") == "e"
    assert await types(store, live=False, state="completed", schedule_id=SCHEDULE) == "a"


@pytest.mark.parametrize("live", [True, False])
async def test_task_list_with_a_selective_filter_stops_early_and_returns_its_position(
    store: Store, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MAX_SCANNED", 10)
    tasks = await submit(store, *(make_task("x" if number == 3 else "y") for number in range(25)), live=live)
    await submit(store, *(make_task("x", tenant_id=OTHER_TENANT) for _ in range(5)), live=live)
    before, pages, found = None, 0, []
    while True:
        scan = await listed(store, live=live, type="x", limit=2, before=before)
        found += [task.id for task in scan.tasks]
        pages += 1
        if scan.scanned_to is None:
            break
        assert before is None or scan.scanned_to < before
        before = scan.scanned_to
    assert (found, pages) == ([tasks[3].id], 3)


async def test_task_list_with_a_full_page_continues_after_its_last_task(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_SCANNED", 10)
    await submit(store, *(make_task("x") for _ in range(25)))
    scan = await listed(store, type="x", limit=5)
    assert (len(scan.tasks), scan.scanned_to) == (5, None)
    assert len((await listed(store, type="x", limit=20)).tasks) == 20, "a page may be larger than one scan"


async def test_task_list_orders_by_id_and_not_by_time(store: Store) -> None:
    late, early = (uuid_utils.compat.uuid7() for _ in range(2))
    await submit(store, make_task("a", id=late, run_at=NOW - minutes(9)), make_task("b", id=early, run_at=NOW - minutes(99)))
    assert await types(store) == "ba"


async def test_task_ticks_returns_ticks_with_a_live_or_finished_backfilled_task(store: Store) -> None:
    def task(minute: float, **more: Any) -> NewTask:
        given = {"origin": Origin.BACKFILL, "schedule_id": SCHEDULE, "scheduled_for": NOW + minutes(minute), **more}
        return make_task(**given)

    await submit(store, task(0), task(1), task(1), task(5))
    await submit(store, task(2), live=False)
    await submit(store, task(3, origin=Origin.TICK), task(3, origin=Origin.TRIGGER), task(4, schedule_id=UUID(int=5)))
    await submit(store, make_task(origin=Origin.BACKFILL, schedule_id=SCHEDULE))
    ticks = await store.task_ticks(DEFAULT_TENANT, SCHEDULE, from_=NOW, to=NOW + minutes(5))
    assert sorted(ticks) == [NOW, NOW + minutes(1), NOW + minutes(2)]
    assert await store.task_ticks(DEFAULT_TENANT, SCHEDULE, from_=NOW + seconds(1), to=NOW + minutes(1)) == []

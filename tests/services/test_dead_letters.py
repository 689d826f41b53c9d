"""Dead letters: listed, replayed as new tasks (by filter once, by id repeatedly), and purged, with a record kept."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from everbeat.core.errors import NotFound
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import DeadLetter, Origin, TaskState
from everbeat.services import dead_letters as module
from everbeat.services.events import TasksSubmitted
from everbeat.store.base import Store
from everbeat.store.values import DeadFilter, QueueDepth
from tests.factories import (
    NOW,
    OTHER_TENANT,
    SteppedNode,
    count_rows,
    execute_raw,
    make_input,
    minutes,
    open_second_store,
    seconds,
)
from tests.services.workers import Worker, attempts, get, submit


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def make_dead_letters(node: SteppedNode, count: int = 1, *, tenant_id: UUID = DEFAULT_TENANT, **more: Any) -> list[UUID]:
    """Create dead letters of the given number of tasks, one second apart, and return their ids, oldest first."""
    worker = Worker(node, tenant_id=tenant_id)
    given = [make_input(**{"type": "work", "queue": "q", "max_attempts": 1, **more}) for _ in range(count)]
    ids = await node.tasks.submit_batch(tenant_id, given, now=node.now)
    for _ in ids:
        node.move_to(node.now + seconds(1))
        assert (await worker.fail(await worker.claim_one(queues=[given[0].queue or "default"]))).next == "dead"
    return ids


async def page(node: SteppedNode, filter_: DeadFilter | None = None, **more: Any) -> list[DeadLetter]:
    return await node.dead_letters.page(DEFAULT_TENANT, filter_ or DeadFilter(), **{"before": None, "limit": 1000, **more})


async def replay_all(
    node: SteppedNode, filter_: DeadFilter | None = None, *, rate: float | None = None
) -> module.BulkReplayResult:
    return await node.dead_letters.replay_all(DEFAULT_TENANT, filter_ or DeadFilter(), rate_per_second=rate, now=node.now)


async def test_dead_letters_are_listed_newest_first_in_pages(node: SteppedNode) -> None:
    ids = await make_dead_letters(node, 5)
    found, before = [], None
    while letters := await page(node, before=before, limit=2):
        found += [letter.task_id for letter in letters]
        before = (letters[-1].died_at, letters[-1].task_id)
    assert found == ids[::-1]


async def test_dead_letters_of_the_same_instant_are_all_listed(node: SteppedNode) -> None:
    for _ in range(5):
        await submit(node, queue="q", max_attempts=1)
    worker = Worker(node)
    for task in await worker.claim(5, queues=["q"]):
        await worker.fail(task)
    found, before = set(), None
    while letters := await page(node, before=before, limit=2):
        found |= {letter.task_id for letter in letters}
        before = (letters[-1].died_at, letters[-1].task_id)
    assert len(found) == 5


async def test_dead_letters_are_filtered(node: SteppedNode) -> None:
    a = await make_dead_letters(node, 2, type="a")
    b = await make_dead_letters(node, 1, type="b", queue="other")
    theirs = await make_dead_letters(node, 1, tenant_id=OTHER_TENANT)
    for filter_, ids in (
        (DeadFilter(), {*a, *b}),
        (DeadFilter(type="a"), set(a)),
        (DeadFilter(queue="other"), set(b)),
        (DeadFilter(queue="other", type="a"), set()),
        (DeadFilter(from_at=NOW + seconds(2)), {a[1], *b}),
        (DeadFilter(to_at=NOW + seconds(2)), {a[0]}),
        (DeadFilter(task_ids=(a[0], *theirs)), {a[0]}),
        (DeadFilter(task_ids=()), set()),
        (DeadFilter(schedule_id=uuid4()), set()),
    ):
        assert {letter.task_id for letter in await page(node, filter_)} == ids, filter_
    with pytest.raises(NotFound):
        await node.dead_letters.get(DEFAULT_TENANT, theirs[0])


async def test_a_replay_is_a_new_task_with_the_same_work(node: SteppedNode) -> None:
    (id_,) = await make_dead_letters(node, payload={"a": 1}, labels={"x": "y"}, priority=4, timeout_seconds=8)
    node.move_to(node.now + minutes(1))
    again = await node.dead_letters.replay(DEFAULT_TENANT, id_, now=node.now)
    assert await get(node, again) == again
    assert (again.id != id_, again.origin, again.state, again.attempt) == (True, Origin.REPLAY, TaskState.READY, 0)
    assert (again.payload, again.labels, again.priority, again.timeout_seconds) == (b'{"a":1}', {"x": "y"}, 4, 8)
    letter = await node.dead_letters.get(DEFAULT_TENANT, id_)
    assert (letter.replays, letter.replayed_at, letter.replayed_as) == (1, node.now, again.id)
    assert (await node.tasks.get(DEFAULT_TENANT, id_)).state is TaskState.DEAD
    assert len(await node.tasks.attempts(DEFAULT_TENANT, id_)) == 1
    assert await attempts(node, again) == []


async def test_a_dead_letter_can_be_replayed_repeatedly_by_id(node: SteppedNode) -> None:
    (id_,) = await make_dead_letters(node)
    tasks = [await node.dead_letters.replay(DEFAULT_TENANT, id_, now=node.now) for _ in range(3)]
    assert len({task.id for task in tasks}) == 3
    letter = await node.dead_letters.get(DEFAULT_TENANT, id_)
    assert (letter.replays, letter.replayed_as) == (3, tasks[-1].id)


async def test_unknown_dead_letters_are_not_replayed(node: SteppedNode) -> None:
    (theirs,) = await make_dead_letters(node, tenant_id=OTHER_TENANT)
    alive = await submit(node)
    for id_ in (uuid4(), theirs, alive.id):
        with pytest.raises(NotFound):
            await node.dead_letters.replay(DEFAULT_TENANT, id_, now=node.now)


async def test_a_replay_by_filter_replays_each_dead_letter_once(node: SteppedNode) -> None:
    ids = await make_dead_letters(node, 5)
    await node.dead_letters.replay(DEFAULT_TENANT, ids[2], now=node.now)
    first = await replay_all(node)
    assert (first.count, len(first.ids), first.has_more) == (4, 4, False)
    assert await replay_all(node) == (0, [], False)
    assert {letter.replays for letter in await page(node)} == {1}
    again = await node.dead_letters.replay(DEFAULT_TENANT, ids[0], now=node.now)
    assert again.id not in first.ids, "by id it can be replayed again"


async def test_concurrent_replays_by_filter_replay_each_dead_letter_once(store: Store) -> None:
    second_store = open_second_store(store)
    nodes = [SteppedNode(store), SteppedNode(second_store)]
    await make_dead_letters(nodes[0], 30)
    nodes[1].move_to(nodes[0].now)
    results = await asyncio.gather(*(replay_all(node) for node in nodes for _ in range(2)))
    assert sum(result.count for result in results) == 30
    assert await store.task_depths() == [QueueDepth("q", "ready", 30)]
    assert sum(event.count for node in nodes for event in node.events_of(TasksSubmitted)) == 60
    await second_store.close()


async def test_only_matching_dead_letters_are_replayed(node: SteppedNode) -> None:
    ids = await make_dead_letters(node, 4)
    result = await replay_all(node, DeadFilter(task_ids=(ids[1], uuid4())))
    assert result.count == 1
    result = await replay_all(node, DeadFilter(from_at=NOW + seconds(3)))
    assert result.count == 2
    assert [letter.task_id for letter in await page(node) if letter.replays == 0] == [ids[0]]


async def test_a_rate_spreads_the_replays_over_time_oldest_first(node: SteppedNode) -> None:
    ids = await make_dead_letters(node, 5)
    result = await replay_all(node, rate=2)
    assert result.count == 5
    letters = {letter.task_id: letter for letter in await page(node)}
    delays = []
    for id_ in ids:
        task = await node.tasks.get(DEFAULT_TENANT, letters[id_].replayed_as or uuid4())
        delays.append((task.run_at - node.now).total_seconds())
    assert delays == [0, 0.5, 1, 1.5, 2]
    assert await node.store.task_depths() == [QueueDepth("q", "ready", 1), QueueDepth("q", "scheduled", 4)]


async def test_many_dead_letters_are_replayed_in_batches_up_to_a_limit(
    node: SteppedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_SIZE", 3)
    monkeypatch.setattr(module, "MAX_REPLAYED", 7)
    monkeypatch.setattr(module, "_MAX_IDS", 4)
    await make_dead_letters(node, 10)
    first = await replay_all(node)
    assert (first.count, len(first.ids), first.has_more) == (7, 4, True)
    second = await replay_all(node)
    assert (second.count, second.has_more) == (3, False)
    assert await node.store.task_depths() == [QueueDepth("q", "ready", 10)]


async def test_a_replay_of_exactly_the_limit_reports_that_none_are_left(
    node: SteppedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REPLAYED", 3)
    await make_dead_letters(node, 3)
    assert (await replay_all(node))[::2] == (3, False)


async def test_a_purge_clears_dead_letters_and_keeps_a_record(node: SteppedNode) -> None:
    ids = await make_dead_letters(node, 4, payload={"secret": 1})
    node.move_to(node.now + minutes(1))
    assert await node.dead_letters.purge(DEFAULT_TENANT, DeadFilter(to_at=NOW + seconds(3)), now=node.now) == 2
    assert [letter.task_id for letter in await page(node)] == ids[:1:-1]
    with pytest.raises(NotFound):
        await node.dead_letters.replay(DEFAULT_TENANT, ids[0], now=node.now)
    rows = await execute_raw(node.store, "SELECT payload, error, purged_at IS NULL FROM dead_letters ORDER BY died_at")
    assert len(rows) == 4
    assert [(payload, error) for payload, error, _ in rows[:2]] == [("null", None)] * 2
    assert [bool(is_kept) for _, _, is_kept in rows] == [False, False, True, True]
    assert (await replay_all(node)).count == 2
    assert (await node.tasks.get(DEFAULT_TENANT, ids[0])).state is TaskState.DEAD, "a purge does not change the history"


async def test_a_purge_of_many_works_in_batches_and_within_the_tenant(
    node: SteppedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_SIZE", 2)
    await make_dead_letters(node, 5)
    await make_dead_letters(node, 1, tenant_id=OTHER_TENANT)
    assert await node.dead_letters.purge(DEFAULT_TENANT, DeadFilter(), now=node.now) == 5
    assert await node.dead_letters.purge(DEFAULT_TENANT, DeadFilter(), now=node.now) == 0
    assert len(await node.dead_letters.page(OTHER_TENANT, DeadFilter(), before=None, limit=10)) == 1
    assert await count_rows(node.store, "dead_letters") == 6


async def test_dead_letters_and_replays_of_a_schedule_refer_to_it(node: SteppedNode) -> None:
    job = await node.put(max_attempts=1)
    await node.run(NOW + minutes(1), by_seconds=60)
    worker = Worker(node)
    await worker.fail(await worker.claim_one())
    (letter,) = await page(node, DeadFilter(schedule_id=job.id))
    assert (letter.schedule, letter.scheduled_for, letter.origin) == ("job", NOW + minutes(1), Origin.TICK)
    again = await node.dead_letters.replay(DEFAULT_TENANT, letter.task_id, now=node.now)
    assert (again.schedule, again.schedule_id, again.scheduled_for) == ("job", job.id, NOW + minutes(1))
    claimed = await worker.claim_one()
    assert (claimed.schedule, claimed.scheduled_for, claimed.origin) == ("job", NOW + minutes(1), Origin.REPLAY)
    count = await node.count()
    assert (count.fired, count.doubled) == (1, 0), "a replay is not a second task of the tick"


async def test_a_dead_letter_is_kept_for_a_long_time(node: SteppedNode) -> None:
    (id_,) = await make_dead_letters(node)
    node.move_to(node.now + timedelta(days=300))
    assert (await node.dead_letters.get(DEFAULT_TENANT, id_)).died_at < datetime.max.replace(tzinfo=NOW.tzinfo)
    assert (await replay_all(node)).count == 1

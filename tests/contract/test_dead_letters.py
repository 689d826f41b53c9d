"""dead_find, dead_list, dead_replay and dead_purge: listing, replaying and purging dead letters."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, DeadLetter, Origin, TaskKey, TaskState
from everbeat.store.base import Store
from everbeat.store.values import DeadFilter, Replay
from tests.factories import NOW, OTHER_TENANT, claim, count_rows, execute_raw, make_task, minutes, open_second_store, seconds

SCHEDULE = UUID(int=9)


async def make_dead_letter(store: Store, type_: str = "work", *, at: datetime = NOW, error: str = '"no"', **more: Any) -> UUID:
    task = make_task(type_, **more)
    await store.task_submit([task], now=at)
    (claimed,) = await claim(store, task.queue, now=at, tenant_id=task.tenant_id)
    dead = AttemptEnd(task.id, task.tenant_id, claimed.fence, AttemptOutcome.FAILED, TaskState.DEAD, None, error, "no use")
    assert (await store.task_end([dead], is_expired=False, now=at)).ids
    return task.id


async def list_letters(
    store: Store,
    *,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    only_never_replayed: bool = False,
    **filter_: Any,
) -> list[DeadLetter]:
    return await store.dead_list(
        DEFAULT_TENANT, DeadFilter(**filter_), before=before, limit=limit, only_never_replayed=only_never_replayed
    )


async def types(store: Store, **more: Any) -> str:
    return "".join(letter.type for letter in await list_letters(store, **more))


def replay(task_id: UUID, **more: Any) -> Replay:
    return Replay(task_id, make_task("again", origin=Origin.REPLAY, **more))


# Finding and listing


async def test_dead_find_finds_the_tenants_dead_letters(store: Store) -> None:
    ours, theirs = await make_dead_letter(store), await make_dead_letter(store, tenant_id=OTHER_TENANT)
    (letter,) = await store.dead_find(DEFAULT_TENANT, [ours, theirs, UUID(int=5)])
    assert letter.task_id == ours
    assert await store.dead_find(DEFAULT_TENANT, []) == []
    assert [one.task_id for one in await store.dead_find(OTHER_TENANT, [ours, theirs])] == [theirs]


async def test_dead_errors_names_the_error_of_each_dead_letter(store: Store) -> None:
    first = await make_dead_letter(store, "one", queue="q")
    await make_dead_letter(store, tenant_id=OTHER_TENANT)
    second = await make_dead_letter(
        store, "two", at=NOW + timedelta(seconds=1), error='{"message": "boom", "kind": "ValueError"}'
    )
    newest, oldest = await store.dead_errors(DEFAULT_TENANT, DeadFilter(), limit=10)
    assert (newest.task_id, newest.error_kind, newest.message, newest.is_replayed) == (second, "ValueError", "boom", False)
    assert (oldest.task_id, oldest.queue, oldest.type, oldest.error_kind) == (first, "q", "one", None)
    assert [one.type for one in await store.dead_errors(DEFAULT_TENANT, DeadFilter(type="one"), limit=10)] == ["one"]
    assert [one.type for one in await store.dead_errors(DEFAULT_TENANT, DeadFilter(), limit=1)] == ["two"]


async def test_dead_list_pages_newest_first(store: Store) -> None:
    for number in range(5):
        # Two tasks become dead letters at each instant.
        await make_dead_letter(store, str(number), at=NOW + minutes(number // 2))
    await make_dead_letter(store, "x", tenant_id=OTHER_TENANT)
    everything = await list_letters(store)
    assert [one.died_at for one in everything] == [NOW + minutes(at) for at in (2, 1, 1, 0, 0)]
    pages: list[DeadLetter] = []
    while page := await list_letters(store, limit=2, before=(pages[-1].died_at, pages[-1].task_id) if pages else None):
        pages += page
    assert pages == everything
    assert "".join(one.type for one in everything) == "43210", "dead letters of one instant are ordered by id"


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "cba"),
    ({"queue": "fast"}, "ca"),
    ({"type": "b"}, "b"),
    ({"schedule_id": SCHEDULE}, "b"),
    ({"schedule_id": SCHEDULE, "queue": "fast"}, ""),
    ({"from_at": NOW + minutes(1)}, "cb"),
    ({"to_at": NOW + minutes(1)}, "a"),
    ({"from_at": NOW + minutes(1), "to_at": NOW + minutes(2)}, "b"),
    ({"task_ids": ()}, ""),
]


@pytest.mark.parametrize(("filter_", "expected"), FILTERS)
async def test_dead_list_filters(store: Store, filter_: dict[str, Any], expected: str) -> None:
    await make_dead_letter(store, "a", queue="fast")
    await make_dead_letter(store, "b", queue="slow", schedule_id=SCHEDULE, at=NOW + minutes(1))
    await make_dead_letter(store, "c", queue="fast", at=NOW + minutes(2))
    assert await types(store, **filter_) == expected


async def test_dead_list_of_given_task_ids(store: Store) -> None:
    ids = [await make_dead_letter(store, type_) for type_ in "abc"]
    assert await types(store, task_ids=(ids[0], ids[2], UUID(int=5))) == "ca"


async def test_dead_list_of_dead_letters_never_replayed(store: Store) -> None:
    first, _ = await make_dead_letter(store, "a"), await make_dead_letter(store, "b")
    await store.dead_replay(DEFAULT_TENANT, [replay(first)], again=False, now=NOW)
    assert await types(store, only_never_replayed=True) == "b"
    assert await types(store) == "ba"


# Replaying


async def test_dead_replay_creates_a_new_task_and_records_it(store: Store) -> None:
    dead = await make_dead_letter(store)
    one = replay(dead, payload=b"[1]", delay_seconds=60)
    assert (await store.dead_replay(DEFAULT_TENANT, [one], again=False, now=NOW + minutes(1))).task_ids == [dead]
    (task,) = await store.task_find(DEFAULT_TENANT, [one.task.id])
    assert (task.type, task.payload, task.origin, task.attempt) == ("again", b"[1]", Origin.REPLAY, 0)
    assert (task.state, task.run_at, task.created_at) == (TaskState.SCHEDULED, NOW + minutes(2), NOW + minutes(1))
    (letter,) = await store.dead_find(DEFAULT_TENANT, [dead])
    assert (letter.replayed_at, letter.replayed_as, letter.replays) == (NOW + minutes(1), one.task.id, 1)
    (old,) = await store.task_find(DEFAULT_TENANT, [dead])
    assert old.state is TaskState.DEAD, "a finished task does not change"


async def test_dead_replay_of_a_replayed_dead_letter_needs_the_again_flag(store: Store) -> None:
    dead = await make_dead_letter(store)
    await store.dead_replay(DEFAULT_TENANT, [replay(dead)], again=False, now=NOW)
    assert (await store.dead_replay(DEFAULT_TENANT, [replay(dead)], again=False, now=NOW)).task_ids == []
    assert await count_rows(store, "tasks") == 1
    second = replay(dead)
    assert (await store.dead_replay(DEFAULT_TENANT, [second], again=True, now=NOW + seconds(5))).task_ids == [dead]
    (letter,) = await store.dead_find(DEFAULT_TENANT, [dead])
    assert (letter.replayed_at, letter.replayed_as, letter.replays) == (NOW + seconds(5), second.task.id, 2)
    assert await count_rows(store, "tasks") == 2


async def test_dead_replay_of_a_batch_replays_the_allowed_dead_letters(store: Store) -> None:
    fresh, replayed, theirs, purged = [
        await make_dead_letter(store, tenant_id=OTHER_TENANT if name == "theirs" else DEFAULT_TENANT)
        for name in ("fresh", "replayed", "theirs", "purged")
    ]
    await store.dead_replay(DEFAULT_TENANT, [replay(replayed)], again=False, now=NOW)
    await store.dead_purge(DEFAULT_TENANT, DeadFilter(task_ids=(purged,)), limit=10, now=NOW)
    replays = [replay(id_) for id_ in (theirs, purged, replayed, UUID(int=5), fresh)]
    assert (await store.dead_replay(DEFAULT_TENANT, replays, again=False, now=NOW)).task_ids == [fresh]
    assert await count_rows(store, "tasks") == 2
    assert (await store.dead_replay(DEFAULT_TENANT, replays[:3], again=True, now=NOW)).task_ids == [replayed]
    assert (await store.dead_replay(DEFAULT_TENANT, [], again=True, now=NOW)).task_ids == []


@pytest.mark.parametrize("again", [True, False])
async def test_dead_replay_of_one_dead_letter_twice_in_a_batch_creates_one_task(store: Store, again: bool) -> None:
    dead = await make_dead_letter(store)
    assert (await store.dead_replay(DEFAULT_TENANT, [replay(dead), replay(dead)], again=again, now=NOW)).task_ids == [dead]
    (letter,) = await store.dead_find(DEFAULT_TENANT, [dead])
    assert [task.id for task in await claim(store)] == [letter.replayed_as]


async def test_dead_replay_under_concurrency_creates_one_task(store: Store) -> None:
    second_store = open_second_store(store)
    dead = [await make_dead_letter(store) for _ in range(10)]
    one, two = await asyncio.gather(
        store.dead_replay(DEFAULT_TENANT, [replay(id_) for id_ in dead], again=False, now=NOW),
        second_store.dead_replay(DEFAULT_TENANT, [replay(id_) for id_ in dead], again=False, now=NOW),
    )
    await second_store.close()
    assert sorted([*one.task_ids, *two.task_ids]) == sorted(dead)
    assert await count_rows(store, "tasks") == 10


# Purging


async def test_dead_purge_clears_and_hides_dead_letters_but_keeps_a_record(store: Store) -> None:
    dead = await make_dead_letter(store, payload=b'"secret"')
    assert await store.dead_purge(DEFAULT_TENANT, DeadFilter(), limit=10, now=NOW + minutes(1)) == 1
    assert await list_letters(store) == await store.dead_find(DEFAULT_TENANT, [dead]) == []
    ((payload, error, reason),) = await execute_raw(store, "SELECT payload, error, reason FROM dead_letters")
    assert (payload, error, reason) == ("null", None, "no use")
    assert await store.dead_purge(DEFAULT_TENANT, DeadFilter(), limit=10, now=NOW + minutes(2)) == 0


async def test_dead_purge_works_in_batches_oldest_first(store: Store) -> None:
    for number in range(5):
        await make_dead_letter(store, str(number), at=NOW + minutes(number))
    assert await store.dead_purge(DEFAULT_TENANT, DeadFilter(), limit=2, now=NOW) == 2
    assert await types(store) == "432"
    counts = [await store.dead_purge(DEFAULT_TENANT, DeadFilter(), limit=2, now=NOW) for _ in range(3)]
    assert counts == [2, 1, 0]


@pytest.mark.parametrize(("filter_", "expected"), FILTERS)
async def test_dead_purge_with_a_filter_keeps_other_dead_letters(store: Store, filter_: dict[str, Any], expected: str) -> None:
    await make_dead_letter(store, "a", queue="fast")
    await make_dead_letter(store, "b", queue="slow", schedule_id=SCHEDULE, at=NOW + minutes(1))
    await make_dead_letter(store, "c", queue="fast", at=NOW + minutes(2))
    await make_dead_letter(store, "x", tenant_id=OTHER_TENANT)
    assert await store.dead_purge(DEFAULT_TENANT, DeadFilter(**filter_), limit=10, now=NOW) == len(expected)
    assert await types(store) == "".join(type_ for type_ in "cba" if type_ not in expected)
    assert len(await store.dead_list(OTHER_TENANT, DeadFilter(), before=None, limit=10)) == 1


async def test_dead_replay_with_an_idempotency_key_runs_once(store: Store) -> None:
    dead, key = await make_dead_letter(store), TaskKey("once", b"1")
    first, second = replay(dead, key=key), replay(dead, key=key)
    assert (await store.dead_replay(DEFAULT_TENANT, [first], again=True, now=NOW)).task_ids == [dead]
    assert (await store.dead_replay(DEFAULT_TENANT, [second], again=True, now=NOW)).task_ids == []
    (letter,) = await store.dead_find(DEFAULT_TENANT, [dead])
    assert (letter.replayed_as, letter.replays) == (first.task.id, 1)
    submitted = await store.task_submit([second.task], now=NOW)
    assert (submitted.ids, submitted.repeated) == ([first.task.id], frozenset({0}))


async def test_dead_replay_that_is_rejected_does_not_store_its_key(store: Store) -> None:
    dead, key = await make_dead_letter(store), TaskKey("once", b"1")
    assert (await store.dead_replay(DEFAULT_TENANT, [replay(UUID(int=5), key=key)], again=True, now=NOW)).task_ids == []
    assert (await store.dead_replay(DEFAULT_TENANT, [replay(dead, key=key)], again=True, now=NOW)).task_ids == [dead]

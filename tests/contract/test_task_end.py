"""task_running, task_expired, task_end, task_ended and task_attempts: how attempts end, and the new states of their tasks."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.targets import HttpTarget
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, LeasedTask, Origin, TaskState
from everbeat.store.base import Store
from everbeat.store.values import EndedAttempt, EndResult, HeartbeatWrite
from tests.factories import (
    NOW,
    OTHER_TENANT,
    claim,
    complete,
    count_rows,
    lease_of,
    make_task,
    minutes,
    open_second_store,
    seconds,
)

NOTHING = EndResult(frozenset(), frozenset(), [])
SCHEDULE = UUID(int=9)
FAILED, LOST, RELEASED = AttemptOutcome.FAILED, AttemptOutcome.LOST, AttemptOutcome.RELEASED
READY, DEAD = TaskState.READY, TaskState.DEAD


async def start(store: Store, count: int = 1, **more: Any) -> list[ClaimedTask]:
    await store.task_submit([make_task(**more) for _ in range(count)], now=NOW)
    return await claim(store, limit=count)


def ending(task: ClaimedTask, outcome: AttemptOutcome = FAILED, state: TaskState = READY, **more: Any) -> AttemptEnd:
    return AttemptEnd(task.id, DEFAULT_TENANT, task.fence, outcome, state, None, None)._replace(**more)


async def end(store: Store, *endings: AttemptEnd, at: float = 1, is_expired: bool = False) -> EndResult:
    return await store.task_end(endings, is_expired=is_expired, now=NOW + seconds(at))


# Finding leases


async def test_task_running_returns_the_fields_for_the_retry_decision(store: Store) -> None:
    (task,) = await start(store, queue="default", max_attempts=7, retry='{"kind":"fixed"}', timeout_seconds=90.0)
    await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    now, running = await store.task_running([lease_of(task)], now=NOW + seconds(5))
    assert now == NOW + seconds(5)
    assert running == [
        LeasedTask(
            id=task.id,
            tenant_id=DEFAULT_TENANT,
            queue="default",
            fence=1,
            attempt=1,
            max_attempts=7,
            retry='{"kind":"fixed"}',
            cancel_requested=True,
            deadline_at=NOW + seconds(90),
            first_started_at=NOW,
        )
    ]


async def test_task_running_leaves_out_invalid_leases(store: Store) -> None:
    one, two, three, four = await start(store, 4)
    await complete(store, two)
    leases = [
        lease_of(one), lease_of(two), lease_of(three, fence=2), lease_of(four, tenant_id=OTHER_TENANT),
        lease_of(one, id=UUID(int=5)),
    ]  # fmt: skip
    _, running = await store.task_running(leases, now=NOW + seconds(29.999999))
    assert [task.id for task in running] == [one.id]
    assert await store.task_running(leases, now=NOW + seconds(30)) == (NOW + seconds(30), [])
    assert await store.task_running([], now=NOW) == (NOW, [])


async def test_task_expired_returns_expired_leases_oldest_first(store: Store) -> None:
    await store.task_submit([make_task(str(number)) for number in range(4)], now=NOW)
    taken = []
    for length in (30, 10, 20, 90):
        taken += await claim(store, limit=1, lease_seconds=length)
    now, expired = await store.task_expired(limit=10, now=NOW + seconds(30))
    assert now == NOW + seconds(30)
    assert [task.id for task in expired] == [taken[1].id, taken[2].id, taken[0].id]
    assert [task.id for task in (await store.task_expired(limit=1, now=NOW + seconds(30)))[1]] == [taken[1].id]
    assert (await store.task_expired(limit=10, now=NOW + seconds(9.999999)))[1] == []


async def test_task_expired_returns_tasks_of_every_tenant(store: Store) -> None:
    await store.task_submit([make_task(tenant_id=OTHER_TENANT)], now=NOW)
    await claim(store, tenant_id=OTHER_TENANT)
    _, (task,) = await store.task_expired(limit=10, now=NOW + minutes(1))
    assert (task.tenant_id, task.attempt, task.cancel_requested) == (OTHER_TENANT, 1, False)


async def test_task_shorten_leases_lets_leases_of_a_later_clock_end_after_their_length(store: Store) -> None:
    """The clock was ahead by an hour, and was set back. The lease must not last for that hour."""
    await store.task_submit([make_task(str(number)) for number in range(2)], now=NOW)
    (ahead,) = await claim(store, limit=1, now=NOW + minutes(60))
    (usual,) = await claim(store, limit=1)
    assert await store.task_shorten_leases(limit=10, now=NOW) == 1
    _, expired = await store.task_expired(limit=10, now=NOW + seconds(30))
    assert {task.id for task in expired} == {ahead.id, usual.id}
    assert (await store.task_expired(limit=10, now=NOW + seconds(29.9)))[1] == []
    assert await store.task_shorten_leases(limit=10, now=NOW) == 0


async def test_task_shorten_leases_keeps_the_lease_valid_for_its_worker(store: Store) -> None:
    await store.task_submit([make_task()], now=NOW)
    (task,) = await claim(store, now=NOW + minutes(60))
    assert await store.task_shorten_leases(limit=10, now=NOW) == 1
    await store.task_heartbeat([HeartbeatWrite(lease_of(task))], now=NOW + seconds(20))
    assert (await store.task_expired(limit=10, now=NOW + seconds(49)))[1] == []
    assert len((await store.task_expired(limit=10, now=NOW + seconds(50)))[1]) == 1


async def test_task_shorten_leases_leaves_a_lease_after_a_small_step_back(store: Store) -> None:
    await start(store)
    assert await store.task_shorten_leases(limit=10, now=NOW - seconds(14)) == 0
    assert (await store.task_expired(limit=10, now=NOW + seconds(29.9)))[1] == []


async def test_task_shorten_leases_is_limited(store: Store) -> None:
    await start(store, 3)
    back = NOW - minutes(60)
    assert [await store.task_shorten_leases(limit=2, now=back) for _ in range(3)] == [2, 1, 0]


async def test_task_expired_leaves_out_a_renewed_lease(store: Store) -> None:
    (task,) = await start(store)
    await store.task_heartbeat([HeartbeatWrite(lease_of(task))], now=NOW + seconds(20))
    assert (await store.task_expired(limit=10, now=NOW + seconds(49)))[1] == []
    assert len((await store.task_expired(limit=10, now=NOW + seconds(50)))[1]) == 1


# Tasks that run again


async def test_task_end_schedules_a_retry_for_later(store: Store) -> None:
    (task,) = await start(store, schedule_id=SCHEDULE)
    later = NOW + minutes(5)
    ended = await end(store, ending(task, state=TaskState.SCHEDULED, run_at=later, error='{"message":"no"}'))
    assert ended[:2] == (frozenset({(task.id, 1)}), frozenset()), "the task is still unfinished for its schedule"
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.run_at, found.error) == (TaskState.SCHEDULED, later, b'{"message":"no"}')
    assert (found.attempt, found.fence, found.worker, found.lease_until) == (1, 1, None, None)
    (attempt,) = await store.task_attempts(DEFAULT_TENANT, task.id)
    assert (attempt.attempt, attempt.fence, attempt.worker, attempt.outcome) == (1, 1, "worker", FAILED)
    assert (attempt.started_at, attempt.ended_at, attempt.error) == (NOW, NOW + seconds(1), b'{"message":"no"}')


async def test_task_end_makes_a_task_ready_for_an_immediate_retry(store: Store) -> None:
    (task,) = await start(store)
    await end(store, ending(task, LOST), at=30, is_expired=True)
    (again,) = await claim(store, worker="w2", now=NOW + seconds(30))
    assert (again.id, again.attempt, again.fence) == (task.id, 2, 2)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.run_at, found.started_at, found.error) == (NOW, NOW + seconds(30), None)


async def test_task_end_keeps_the_last_error_until_the_next_error(store: Store) -> None:
    (task,) = await start(store)
    await end(store, ending(task, error='"one"'))
    (task,) = await claim(store, now=NOW + seconds(1))
    await end(store, ending(task, LOST), at=31, is_expired=True)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert found.error == b'"one"'
    assert [attempt.error for attempt in await store.task_attempts(DEFAULT_TENANT, task.id)] == [b'"one"', None]


async def test_task_end_of_a_released_task_does_not_count_as_an_attempt(store: Store) -> None:
    (task,) = await start(store)
    await end(store, ending(task, RELEASED))
    (again,) = await claim(store)
    assert (again.attempt, again.fence) == (1, 2)
    (attempt,) = await store.task_attempts(DEFAULT_TENANT, task.id)
    assert (attempt.attempt, attempt.fence, attempt.outcome) == (1, 1, RELEASED)


async def test_task_end_twice_for_one_lease_ends_the_attempt_once(store: Store) -> None:
    """Reports of many requests may be written together, and one report may have been sent twice."""
    (one, two) = await start(store, 2)
    done = await end(store, ending(one), ending(one), ending(two), ending(two, state=DEAD), ending(one, state=DEAD))
    assert done.ids == {(one.id, 1), (two.id, 1)}
    assert await count_rows(store, "attempts") == 2
    assert await count_rows(store, "task_history") == await count_rows(store, "dead_letters") == 0
    assert await end(store, ending(one)) == NOTHING


# Finished tasks


async def test_task_end_of_a_dead_task_writes_history_and_a_dead_letter(store: Store) -> None:
    given = make_task(
        "mail", target='{"kind":"http","url":"https://example.com"}',
        payload=b'{"a": 1}', origin=Origin.TICK, priority=3, max_attempts=1,
        labels='{"a":"b"}', retry='{"kind":"fixed"}', timeout_seconds=90.0, schedule_id=SCHEDULE, schedule_name="nightly",
        scheduled_for=NOW, traceparent="00-a-b-01",
    )  # fmt: skip
    await store.task_submit([given], now=NOW)
    (task,) = await claim(store, worker="w1")
    await store.task_heartbeat([HeartbeatWrite(lease_of(task), 0.4, "so far")], now=NOW)
    ended = await end(store, ending(task, state=DEAD, error='{"message":"no"}', reason="no use"))
    assert ended[:2] == (frozenset({(task.id, 1)}), frozenset({SCHEDULE}))
    assert await count_rows(store, "tasks") == await count_rows(store, "attempts") == 0
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.finished_at, found.started_at) == (DEAD, NOW + seconds(1), NOW)
    assert (found.outcome, found.reason, found.error) == (FAILED, "no use", b'{"message":"no"}')
    assert (found.worker, found.attempt, found.fence, found.traceparent) == ("w1", 1, 1, "00-a-b-01")
    assert (found.progress_fraction, found.progress_message, found.result) == (0.4, "so far", None)
    assert (found.schedule, found.schedule_id, found.scheduled_for) == ("nightly", SCHEDULE, NOW)
    (letter,) = await store.dead_find(DEFAULT_TENANT, [task.id])
    assert (letter.task_id, letter.tenant_id, letter.queue, letter.type) == (task.id, DEFAULT_TENANT, "default", "mail")
    assert (letter.target, letter.payload, letter.labels) == (HttpTarget(url="https://example.com"), b'{"a": 1}', {"a": "b"})
    assert (letter.origin, letter.priority, letter.max_attempts, letter.attempt) == (Origin.TICK, 3, 1, 1)
    assert (letter.retry, letter.timeout_seconds) == (b'{"kind":"fixed"}', 90.0)
    assert (letter.schedule, letter.schedule_id, letter.scheduled_for) == ("nightly", SCHEDULE, NOW)
    assert (letter.reason, letter.error, letter.worker) == ("no use", b'{"message":"no"}', "w1")
    assert (letter.created_at, letter.died_at) == (NOW, NOW + seconds(1))
    assert (letter.replayed_at, letter.replayed_as, letter.replays) == (None, None, 0)


@pytest.mark.parametrize("state", [TaskState.CANCELLED, TaskState.FAILED])
async def test_task_end_of_a_cancelled_or_failed_task_writes_only_history(store: Store, state: TaskState) -> None:
    (task,) = await start(store)
    outcome = AttemptOutcome(state.value)
    ended = await end(store, ending(task, outcome, state, reason="why"))
    assert ended[:2] == (frozenset({(task.id, 1)}), frozenset())
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.outcome, found.reason) == (state, outcome, "why")
    assert await count_rows(store, "dead_letters") == 0


async def test_task_end_of_a_dead_task_without_an_error_stores_the_outcome_and_the_last_error(store: Store) -> None:
    (task,) = await start(store)
    await end(store, ending(task, error='"before"'))
    (task,) = await claim(store, now=NOW)
    await end(store, ending(task, LOST, DEAD), at=30, is_expired=True)
    (letter,) = await store.dead_find(DEFAULT_TENANT, [task.id])
    assert (letter.reason, letter.error, letter.attempt) == ("lost", b'"before"', 2)


async def test_task_end_of_a_batch_ends_each_attempt_with_its_own_outcome(store: Store) -> None:
    tasks = await start(store, 5)
    states = [READY, TaskState.SCHEDULED, DEAD, TaskState.CANCELLED, TaskState.FAILED]
    runs = [None, NOW + minutes(1), None, None, None]
    endings = [ending(task, state=state, run_at=at) for task, state, at in zip(tasks, states, runs, strict=True)]
    assert (await end(store, *endings)).ids == {(task.id, 1) for task in tasks}
    found = {task.id: task.state for task in await store.task_find(DEFAULT_TENANT, [task.id for task in tasks])}
    assert [found[task.id] for task in tasks] == states


async def test_task_end_of_an_empty_batch(store: Store) -> None:
    assert await end(store) == NOTHING


async def test_task_end_creates_a_missing_month(store: Store) -> None:
    one, two = await start(store, 2)
    days = 86_400 * 400
    assert len((await end(store, ending(one, LOST), ending(two, LOST, DEAD), at=days, is_expired=True)).ids) == 2
    assert len(await store.task_attempts(DEFAULT_TENANT, one.id)) == 1


# Leases that may be ended


WRONG: dict[str, dict[str, Any]] = {
    "another fence": {"fence": 2},
    "another tenant": {"tenant_id": OTHER_TENANT},
    "another task": {"id": UUID(int=5)},
}


@pytest.mark.parametrize("state", [READY, DEAD])
@pytest.mark.parametrize("case", list(WRONG))
async def test_task_end_without_the_lease_changes_nothing(store: Store, case: str, state: TaskState) -> None:
    (task,) = await start(store)
    for at, is_expired in ((1, False), (31, True)):
        assert await end(store, ending(task, state=state, **WRONG[case]), at=at, is_expired=is_expired) == NOTHING
    assert (await store.task_find(DEFAULT_TENANT, [task.id]))[0].state is TaskState.RUNNING
    assert await count_rows(store, "attempts") == await count_rows(store, "dead_letters") == 0


@pytest.mark.parametrize("state", [READY, DEAD])
@pytest.mark.parametrize(("at", "is_expired"), [(30, False), (29.999999, True)])
async def test_task_end_ends_either_valid_or_expired_leases(
    store: Store, state: TaskState, at: float, is_expired: bool
) -> None:
    (task,) = await start(store)
    assert await end(store, ending(task, state=state), at=at, is_expired=is_expired) == NOTHING
    assert (await store.task_find(DEFAULT_TENANT, [task.id]))[0].state is TaskState.RUNNING
    assert len((await end(store, ending(task, state=state), at=at, is_expired=not is_expired)).ids) == 1


async def test_task_end_of_a_meanwhile_renewed_lease_changes_nothing(store: Store) -> None:
    """The reaper has read an expired lease. Then a heartbeat that the worker sent earlier is written."""
    (task,) = await start(store)
    _, expired = await store.task_expired(limit=1, now=NOW + seconds(30))
    await store.task_heartbeat([HeartbeatWrite(lease_of(task))], now=NOW + seconds(29))
    assert len(expired) == 1
    assert await end(store, ending(task, LOST), at=30, is_expired=True) == NOTHING


async def test_task_end_under_concurrency_ends_each_attempt_once(store: Store) -> None:
    tasks = await start(store, 60)
    stores = [store, *(open_second_store(store) for _ in range(3))]
    batches = [tasks, tasks[::-1], tasks[30:] + tasks[:30], tasks[::2]]
    states = [READY, DEAD, TaskState.CANCELLED, READY]
    done = await asyncio.gather(
        *(
            end(one, *(ending(task, LOST, state) for task in batch), at=31, is_expired=True)
            for one, batch, state in zip(stores, batches, states, strict=True)
        )
    )
    for second_store in stores[1:]:
        await second_store.close()
    ended = [pair for one in done for pair in one.ids]
    assert sorted(ended) == sorted((task.id, 1) for task in tasks)
    assert await count_rows(store, "attempts") == len(done[0].ids) + len(done[3].ids)
    assert await count_rows(store, "dead_letters") == len(done[1].ids)


# Repeated reports


async def test_task_ended_returns_how_attempts_ended(store: Store) -> None:
    one, two, three, four, five = await start(store, 5)
    await end(store, ending(one), ending(two, state=DEAD), ending(three, RELEASED))
    await complete(store, four)
    leases = [lease_of(task) for task in (one, two, three, four, five)]
    assert {(past.id, past) for past in await store.task_ended(leases)} == {
        (one.id, EndedAttempt(one.id, 1, "failed", None)),
        (two.id, EndedAttempt(two.id, 1, "failed", "dead")),
        (three.id, EndedAttempt(three.id, 1, "released", None)),
        (four.id, EndedAttempt(four.id, 1, "completed", "completed")),
    }


async def test_task_ended_leaves_out_other_fences_tenants_and_tasks(store: Store) -> None:
    one, two = await start(store, 2)
    await end(store, ending(one), ending(two, state=DEAD))
    for wrong in WRONG.values():
        assert await store.task_ended([lease_of(task, **wrong) for task in (one, two)]) == []
    assert await store.task_ended([]) == []


async def test_task_ended_leaves_out_a_task_cancelled_before_it_started(store: Store) -> None:
    (task,) = await start(store)
    await end(store, ending(task, RELEASED))
    await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    assert await store.task_ended([lease_of(task)]) == [EndedAttempt(task.id, 1, "released", None)]


async def test_task_attempts_are_returned_in_order_and_only_to_their_tenant(store: Store) -> None:
    (task,) = await start(store)
    for outcome in (FAILED, RELEASED, LOST, AttemptOutcome.TIMEOUT):
        await end(store, ending(task, outcome))
        (task,) = await claim(store, worker=f"after {outcome.value}")
    attempts = await store.task_attempts(DEFAULT_TENANT, task.id)
    assert [(one.fence, one.attempt, one.outcome, one.worker) for one in attempts] == [
        (1, 1, FAILED, "worker"),
        (2, 2, RELEASED, "after failed"),
        (3, 2, LOST, "after released"),
        (4, 3, AttemptOutcome.TIMEOUT, "after lost"),
    ]
    assert await store.task_attempts(OTHER_TENANT, task.id) == []
    assert await store.task_attempts(DEFAULT_TENANT, UUID(int=5)) == []

"""task_accept, task_targets, and the responses of destinations that attempts keep."""

from __future__ import annotations

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, ClaimedTask, TaskState
from everbeat.store.base import Store
from everbeat.store.values import RenewedLease
from tests.factories import NOW, OTHER_TENANT, claim, lease_of, make_task, minutes, seconds

RESPONSE = '{"status": 202}'


async def start(store: Store, **more: object) -> ClaimedTask:
    await store.task_submit([make_task(**more)], now=NOW)  # type: ignore[arg-type]
    (task,) = await claim(store)
    return task


async def test_task_accept_keeps_the_task_running_with_its_response(store: Store) -> None:
    task = await start(store, timeout_seconds=600.0)
    (renewed,) = await store.task_accept([(lease_of(task), 120.0, RESPONSE)], now=NOW)
    assert renewed == RenewedLease(task.id, 1, NOW + seconds(120), False)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.response, found.lease_until) == (TaskState.RUNNING, RESPONSE.encode(), NOW + seconds(120))


async def test_task_accept_again_changes_the_lease_and_keeps_the_response(store: Store) -> None:
    task = await start(store, timeout_seconds=600.0)
    await store.task_accept([(lease_of(task), 500.0, RESPONSE)], now=NOW)
    (renewed,) = await store.task_accept([(lease_of(task), 20.0, None)], now=NOW)
    assert renewed.lease_until == NOW + seconds(20)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert found.response == RESPONSE.encode()


async def test_task_accept_ends_the_lease_at_the_deadline(store: Store) -> None:
    task = await start(store, timeout_seconds=60.0)
    (renewed,) = await store.task_accept([(lease_of(task), 604_800.0, None)], now=NOW)
    assert renewed.lease_until == NOW + seconds(60)


async def test_task_accept_does_not_renew_a_lease_with_a_cancel_request(store: Store) -> None:
    task = await start(store)
    await store.task_cancel(DEFAULT_TENANT, [task.id], now=NOW)
    (renewed,) = await store.task_accept([(lease_of(task), 600.0, None)], now=NOW)
    assert renewed == RenewedLease(task.id, 1, task.lease_until, True)


async def test_task_accept_changes_nothing_without_the_lease(store: Store) -> None:
    task = await start(store)
    wrong = [
        lease_of(task, fence=0),
        lease_of(task, fence=2),
        lease_of(task, tenant_id=OTHER_TENANT),
    ]
    assert await store.task_accept([(lease, 600.0, RESPONSE) for lease in wrong], now=NOW) == []
    assert await store.task_accept([(lease_of(task), 600.0, RESPONSE)], now=NOW + minutes(1)) == []
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.response, found.lease_until) == (None, task.lease_until)


async def test_task_targets_returns_the_targets_of_live_tasks(store: Store) -> None:
    first, second = make_task(target='{"kind":"http"}'), make_task()
    await store.task_submit([first, second], now=NOW)
    assert await store.task_targets([first.id, second.id, OTHER_TENANT]) == {first.id: '{"kind":"http"}', second.id: "{}"}


async def test_task_complete_keeps_the_response(store: Store) -> None:
    task = await start(store)
    await store.task_complete([(lease_of(task), None)], responses={lease_of(task): RESPONSE}, now=NOW)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.response) == (TaskState.COMPLETED, RESPONSE.encode())


async def test_task_complete_keeps_the_response_of_an_accepted_task(store: Store) -> None:
    task = await start(store)
    await store.task_accept([(lease_of(task), 60.0, RESPONSE)], now=NOW)
    await store.task_complete([(lease_of(task), None)], now=NOW)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert found.response == RESPONSE.encode()


async def test_task_end_keeps_the_response_with_each_attempt(store: Store) -> None:
    task = await start(store)
    back = AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.FAILED, TaskState.READY, None, None, None, RESPONSE)
    await store.task_end([back], is_expired=False, now=NOW)
    (attempt,) = await store.task_attempts(DEFAULT_TENANT, task.id)
    assert attempt.response == RESPONSE.encode()
    (again,) = await claim(store)
    (running,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert running.response is None
    dead = AttemptEnd(task.id, DEFAULT_TENANT, again.fence, AttemptOutcome.FAILED, TaskState.DEAD, None, None, "no", '{"a": 1}')
    await store.task_end([dead], is_expired=False, now=NOW)
    (found,) = await store.task_find(DEFAULT_TENANT, [task.id])
    assert (found.state, found.response) == (TaskState.DEAD, b'{"a": 1}')

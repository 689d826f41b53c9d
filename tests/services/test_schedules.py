"""Operations on schedules: what each one changes, keeps and refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import Conflict, InvalidInput, NotFound, RevisionMismatch
from everbeat.core.jitter import jitter_of
from everbeat.core.schedules import DEFAULT_TENANT, Schedule, Status
from everbeat.services.idempotency import Idempotency
from everbeat.services.schedules import RegisteredSchedule
from everbeat.store.base import Store
from everbeat.store.values import NOT_WRITTEN, Notice, ScheduleFilter, ScheduleWriteResult
from tests.factories import (
    NOW,
    OTHER_TENANT,
    SteppedNode,
    StoreOverride,
    changed,
    count_rows,
    definition,
    execute_raw,
    find,
    ledger,
    ledger_summary,
    minutes,
    seconds,
)

TENANT = DEFAULT_TENANT


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def get(node: SteppedNode, name: str = "job") -> Schedule:
    return await node.schedules.get(TENANT, name)


# Creating


async def test_create_returns_the_schedule_as_stored(node: SteppedNode) -> None:
    response = await node.schedules.create(TENANT, definition(payload={"a": 1}), now=NOW)
    body = json.loads(response.body)
    stored = await get(node)
    assert response.status == 201
    assert (body["id"], body["name"], body["status"], body["revision"]) == (str(stored.id), "job", "active", 1)
    assert body["next_tick_at"] == "2026-03-02T12:01:00.000000Z"
    assert (stored.cursor_at, stored.rule_at, stored.created_at) == (NOW, NOW, NOW)


async def test_create_of_a_taken_name_is_a_conflict(node: SteppedNode) -> None:
    await node.schedules.create(TENANT, definition(), now=NOW)
    with pytest.raises(Conflict, match="already exists"):
        await node.schedules.create(TENANT, definition(), now=NOW)


async def test_create_with_a_repeated_key_returns_the_first_response(node: SteppedNode) -> None:
    key = Idempotency("key", b"same request")
    first = await node.schedules.create(TENANT, definition(), idempotency=key, now=NOW)
    assert await node.schedules.create(TENANT, definition(), idempotency=key, now=NOW + minutes(5)) == first
    assert await count_rows(node.store, "schedules") == 1


async def test_create_with_a_key_used_for_another_request_is_refused(node: SteppedNode) -> None:
    await node.schedules.create(TENANT, definition(), idempotency=Idempotency("key", b"one"), now=NOW)
    with pytest.raises(InvalidInput, match="used before"):
        await node.schedules.create(TENANT, definition("other"), idempotency=Idempotency("key", b"two"), now=NOW)


async def test_concurrent_creates_with_one_key_create_one_schedule(node: SteppedNode) -> None:
    key = Idempotency("key", b"same request")
    creating = (node.schedules.create(TENANT, definition(), idempotency=key, now=NOW) for _ in range(5))
    responses = await asyncio.gather(*creating)
    assert len(set(responses)) == 1
    assert await count_rows(node.store, "schedules") == 1


async def test_a_schedule_created_disabled_is_paused_until_it_is_resumed(node: SteppedNode) -> None:
    job = await node.put(enabled=False)
    assert (job.status, job.next_tick_at, job.due_at) == (Status.PAUSED, None, None)
    resumed = await node.schedules.resume(TENANT, "job", now=NOW)
    assert (resumed.status, resumed.next_tick_at, resumed.spec.enabled) == (Status.ACTIVE, NOW + minutes(1), True)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"at": "2026-03-02T11:59:59Z"}, "at"),
        ({"at": "2026-03-02T12:00:00Z"}, "at"),
        ({"ends_at": "2026-03-02T12:00:30Z"}, "ends_at"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"calendars": {"exclude": ["nowhere"]}}, "calendars.exclude"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"every_seconds": 0.5}, "every_seconds"),
    ],
)
async def test_a_schedule_that_could_never_fire_is_refused(node: SteppedNode, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await node.put(**fields)
    assert [error.field for error in refused.value.errors] == [field]
    assert await count_rows(node.store, "schedules") == 0


async def test_jitter_is_in_due_at_from_the_start(node: SteppedNode) -> None:
    job = await node.put(jitter_seconds=30)
    assert job.next_tick_at == NOW + minutes(1)
    assert job.due_at == NOW + minutes(1) + jitter_of(job.id, 30)


async def test_an_interval_keeps_its_anchor_until_it_changes(node: SteppedNode) -> None:
    first = await node.put(every_seconds=600)
    assert (first.spec.rule.anchor, first.next_tick_at) == (NOW, NOW + minutes(10))
    node.move_to(NOW + minutes(3))
    again = await node.put(every_seconds=600, description="changed")
    assert (again.spec.rule.anchor, again.next_tick_at) == (NOW, NOW + minutes(10))
    other = await node.put(every_seconds=300)
    assert (other.spec.rule.anchor, other.next_tick_at) == (NOW, NOW + minutes(5))


# Replacing


async def test_put_returns_created_updated_or_unchanged(node: SteppedNode) -> None:
    async def put(**more: Any) -> RegisteredSchedule:
        return await node.schedules.put(TENANT, "job", definition(**more), now=NOW)

    assert (await put()).status == "created"
    assert (await put()).status == "unchanged"
    assert (await put(priority=5)).status == "updated"


async def test_put_of_the_same_definition_keeps_revision_and_next_tick(node: SteppedNode) -> None:
    before = await node.put(payload={"a": 1, "b": 2})
    node.move_to(NOW + seconds(30))
    await node.schedules.put(TENANT, "job", definition(payload={"b": 2, "a": 1}), now=node.now)
    assert await get(node) == before


async def test_put_of_another_description_keeps_the_position(node: SteppedNode) -> None:
    before = await node.put()
    node.move_to(NOW + seconds(70))  # a tick is due and has not fired
    after = await node.put(description="changed", priority=1)
    assert (after.revision, after.next_tick_at, after.cursor_at) == (2, before.next_tick_at, before.cursor_at)
    assert await ledger(node.store, before.id) == []


async def test_put_of_another_rule_records_past_ticks_and_never_fires_them(node: SteppedNode) -> None:
    job = await node.put()
    node.move_to(NOW + minutes(3))
    after = await node.put(cron="*/10 * * * *")
    assert after.next_tick_at == NOW + minutes(10)
    assert ledger_summary(await ledger(node.store, job.id)) == [(60, "misfire", 3)]
    (past,) = await node.store.schedule_past_rules(DEFAULT_TENANT, [job.id])
    assert (past.rule.expression, past.since, past.until) == ("* * * * *", NOW, NOW + minutes(3))


async def test_put_of_another_zone_never_moves_the_next_tick_back(node: SteppedNode) -> None:
    await node.put(cron="0 13 * * *", timezone="UTC")
    after = await node.put(cron="0 13 * * *", timezone="Europe/Berlin")  # noon in UTC: just past
    assert after.next_tick_at == NOW + timedelta(days=1)


async def test_put_with_a_name_that_differs_from_the_path_is_refused(node: SteppedNode) -> None:
    with pytest.raises(InvalidInput, match="differs from the name in the path"):
        await node.schedules.put(TENANT, "job", definition("other"), now=NOW)


async def test_put_after_a_clock_step_back_continues_at_the_end_of_the_ledger(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(5), by_seconds=60)
    node.now = NOW + minutes(2)
    after = await node.put(cron="30 * * * *")
    assert (after.rule_at, after.cursor_at) == (NOW + minutes(5), NOW + minutes(5))
    (past,) = await node.store.schedule_past_rules(DEFAULT_TENANT, [job.id])
    assert (past.since, past.until) == (NOW, NOW + minutes(5))


async def test_put_batch_is_atomic_and_names_each_error(node: SteppedNode) -> None:
    items = [definition("good"), definition("bad", cron="* *"), definition("good")]
    with pytest.raises(InvalidInput) as refused:
        await node.schedules.put_batch(TENANT, items, now=NOW)
    assert [error.field for error in refused.value.errors] == ["schedules[2].name"]
    with pytest.raises(InvalidInput) as refused:
        await node.schedules.put_batch(TENANT, items[:2], now=NOW)
    assert [error.field for error in refused.value.errors] == ["schedules[1].cron"]
    assert await count_rows(node.store, "schedules") == 0


async def test_put_batch_returns_the_status_of_each_schedule(node: SteppedNode) -> None:
    await node.put("same")
    await node.put("other")
    items = [definition("same"), definition("other", priority=1), definition("new")]
    registered = await node.schedules.put_batch(TENANT, items, now=NOW)
    assert [one.status for one in registered] == ["unchanged", "updated", "created"]


@pytest.mark.parametrize("size", [0, 1001])
async def test_put_batch_limits_its_size(node: SteppedNode, size: int) -> None:
    with pytest.raises(InvalidInput, match="must have 1 to 1000 items"):
        await node.schedules.put_batch(TENANT, [definition(f"job-{number}") for number in range(size)], now=NOW)


# Patching


async def test_patch_changes_only_the_given_fields(node: SteppedNode) -> None:
    before = await node.put(payload={"a": 1}, labels={"team": "ops"}, retry={"kind": "fixed", "base_seconds": 5})
    after = await node.schedules.patch(TENANT, "job", {"priority": 7, "retry": {"max_seconds": 60}}, now=NOW)
    assert (after.spec.priority, after.spec.retry.kind, after.spec.retry.max_seconds) == (7, "fixed", 60)
    assert changed(before, priority=7, retry=after.spec.retry) == after


async def test_patch_of_the_trigger_replaces_the_old_one(node: SteppedNode) -> None:
    await node.put(every_seconds=60)
    after = await node.schedules.patch(TENANT, "job", {"cron": "0 * * * *"}, now=NOW)
    assert (after.spec.rule.expression, after.spec.rule.anchor) == ("0 * * * *", None)


async def test_patch_with_another_revision_is_refused(node: SteppedNode) -> None:
    await node.put()
    await node.schedules.patch(TENANT, "job", {"priority": 1}, if_match=1, now=NOW)
    with pytest.raises(RevisionMismatch, match="revision 2, not 1"):
        await node.schedules.patch(TENANT, "job", {"priority": 2}, if_match=1, now=NOW)
    assert (await get(node)).spec.priority == 1


async def test_patch_may_rename(node: SteppedNode) -> None:
    before = await node.put()
    after = await node.schedules.patch(TENANT, "job", {"name": "renamed"}, now=NOW)
    assert (after.id, after.spec.name, after.next_tick_at) == (before.id, "renamed", before.next_tick_at)
    with pytest.raises(NotFound):
        await get(node)


async def test_patch_to_a_taken_name_is_a_conflict(node: SteppedNode) -> None:
    await node.put("one")
    await node.put("two")
    with pytest.raises(Conflict, match='"two" already exists'):
        await node.schedules.patch(TENANT, "one", {"name": "two"}, now=NOW)
    assert (await get(node, "one")).revision == 1


async def test_patch_of_an_unknown_field_is_refused(node: SteppedNode) -> None:
    await node.put()
    with pytest.raises(InvalidInput) as refused:
        await node.schedules.patch(TENANT, "job", {"status": "paused"}, now=NOW)
    assert [error.field for error in refused.value.errors] == ["status"]


async def test_patch_of_jitter_moves_the_next_firing(node: SteppedNode) -> None:
    job = await node.put()
    after = await node.schedules.patch(TENANT, "job", {"jitter_seconds": 30}, now=NOW)
    assert (after.next_tick_at, after.due_at) == (job.next_tick_at, NOW + minutes(1) + jitter_of(job.id, 30))


# Pausing


async def test_pause_records_due_ticks_and_clears_the_next_tick(node: SteppedNode) -> None:
    job = await node.put()
    paused = await node.schedules.pause(TENANT, "job", note="maintenance", now=NOW + minutes(2))
    assert (paused.status, paused.note, paused.next_tick_at, paused.due_at) == (Status.PAUSED, "maintenance", None, None)
    assert ledger_summary(await ledger(node.store, job.id)) == [(60, "paused", 2)]


async def test_pause_twice_changes_nothing_and_a_new_note_does(node: SteppedNode) -> None:
    await node.put()
    first = await node.schedules.pause(TENANT, "job", note="one", now=NOW)
    assert await node.schedules.pause(TENANT, "job", note="one", now=NOW) == first
    assert await node.schedules.pause(TENANT, "job", note=None, now=NOW) == first
    assert (await node.schedules.pause(TENANT, "job", note="two", now=NOW)).note == "two"


async def test_resume_records_the_pause_and_continues_with_the_next_tick(node: SteppedNode) -> None:
    job = await node.put()
    await node.schedules.pause(TENANT, "job", note="maintenance", now=NOW + seconds(30))
    resumed = await node.schedules.resume(TENANT, "job", now=NOW + minutes(5))
    assert (resumed.status, resumed.note, resumed.next_tick_at) == (Status.ACTIVE, None, NOW + minutes(6))
    assert ledger_summary(await ledger(node.store, job.id)) == [(60, "paused", 5)]
    assert await node.schedules.resume(TENANT, "job", now=NOW + minutes(5)) == resumed


async def test_a_put_of_the_same_definition_keeps_a_pause(node: SteppedNode) -> None:
    await node.put()
    paused = await node.schedules.pause(TENANT, "job", note=None, now=NOW)
    assert await node.put() == paused


async def test_a_put_of_another_rule_keeps_a_pause(node: SteppedNode) -> None:
    await node.put()
    await node.schedules.pause(TENANT, "job", note="maintenance", now=NOW)
    after = await node.put(cron="0 * * * *")
    assert (after.status, after.note, after.next_tick_at) == (Status.PAUSED, "maintenance", None)


async def test_an_explicit_enabled_field_pauses_and_resumes(node: SteppedNode) -> None:
    await node.put()
    assert (await node.put(enabled=False)).status is Status.PAUSED
    assert (await node.put(enabled=True)).status is Status.ACTIVE
    await node.schedules.pause(TENANT, "job", note=None, now=NOW)
    assert (await node.schedules.patch(TENANT, "job", {"enabled": True}, now=NOW)).status is Status.ACTIVE
    assert (await node.schedules.patch(TENANT, "job", {"enabled": False}, now=NOW)).status is Status.PAUSED
    assert (await node.schedules.patch(TENANT, "job", {"priority": 3}, now=NOW)).status is Status.PAUSED


# Ending


async def test_a_finished_schedule_cannot_be_paused_or_resumed(node: SteppedNode) -> None:
    await node.put(at=(NOW + minutes(1)).isoformat())
    await node.step(NOW + minutes(1))
    assert (await get(node)).status is Status.FINISHED
    with pytest.raises(Conflict):
        await node.schedules.pause(TENANT, "job", note=None, now=node.now)
    with pytest.raises(Conflict):
        await node.schedules.resume(TENANT, "job", now=node.now)


async def test_a_finished_schedule_starts_again_with_a_new_rule(node: SteppedNode) -> None:
    job = await node.put(at=(NOW + minutes(1)).isoformat())
    await node.step(NOW + minutes(1))
    again = await node.put(at=(NOW + minutes(9)).isoformat())
    assert (again.id, again.status, again.next_tick_at) == (job.id, Status.ACTIVE, NOW + minutes(9))


async def test_a_finished_schedule_put_again_unchanged_stays_finished(node: SteppedNode) -> None:
    at = (NOW + minutes(1)).isoformat()
    await node.put(at=at)
    await node.step(NOW + minutes(1))
    assert (await node.put(at=at)).status is Status.FINISHED
    assert (await node.schedules.patch(TENANT, "job", {"priority": 1}, now=node.now)).status is Status.FINISHED


async def test_an_ends_at_before_the_next_tick_is_refused(node: SteppedNode) -> None:
    await node.put()
    with pytest.raises(InvalidInput, match="must be later: the rule has no tick before it"):
        await node.schedules.patch(TENANT, "job", {"ends_at": (NOW + seconds(30)).isoformat()}, now=NOW)


async def test_a_resume_after_the_end_finishes(node: SteppedNode) -> None:
    job = await node.put(ends_at=(NOW + minutes(2)).isoformat())
    await node.schedules.pause(TENANT, "job", note=None, now=NOW)
    done = await node.schedules.resume(TENANT, "job", now=NOW + minutes(10))
    assert (done.status, done.next_tick_at) == (Status.FINISHED, None)
    assert ledger_summary(await ledger(node.store, job.id)) == [(60, "paused", 2)]


# Faults


async def test_a_faulty_schedule_is_active_again_after_a_put_that_repairs_it(node: SteppedNode) -> None:
    job = await node.put()
    await execute_raw(node.store, "UPDATE schedules SET timezone = 'Mars/Olympus'")
    await node.step(NOW + minutes(1))
    assert (await get(node)).fault
    with pytest.raises(InvalidInput):
        await node.schedules.resume(TENANT, "job", now=node.now)
    repaired = await node.put()
    assert (repaired.status, repaired.fault, repaired.next_tick_at) == (Status.ACTIVE, None, NOW + minutes(2))
    await node.step(NOW + minutes(2))
    assert len(await ledger(node.store, job.id)) == 1


async def test_a_faulty_schedule_has_a_complete_ledger_after_a_new_rule(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(3), by_seconds=60)
    await node.store.schedule_fault({job.id: "refused"}, now=node.now)
    node.move_to(NOW + minutes(5))
    await node.put(cron="*/10 * * * *")
    count = await node.count()
    assert (count.expected, count.fired, dict(count.skipped), count.missing) == (5, 3, {"paused": 2}, 0)


async def test_disabling_a_faulty_schedule_clears_its_fault(node: SteppedNode) -> None:
    job = await node.put()
    await node.store.schedule_fault({job.id: "broken"}, now=NOW)
    disabled = await node.schedules.patch(TENANT, "job", {"enabled": False}, now=NOW)
    assert (disabled.status, disabled.fault) == (Status.PAUSED, None)


# Finding and deleting


async def test_a_schedule_is_found_by_name_and_by_id(node: SteppedNode) -> None:
    job = await node.put()
    assert await get(node, "job") == await get(node, str(job.id)) == job


@pytest.mark.parametrize("ref", ["nothing", str(UUID(int=4)), "no such name!", "", "x" * 300])
async def test_an_unknown_schedule_is_not_found(node: SteppedNode, ref: str) -> None:
    operations: list[Callable[[], Awaitable[Any]]] = [
        lambda: node.schedules.get(TENANT, ref),
        lambda: node.schedules.patch(TENANT, ref, {"priority": 1}, now=NOW),
        lambda: node.schedules.pause(TENANT, ref, note=None, now=NOW),
        lambda: node.schedules.resume(TENANT, ref, now=NOW),
        lambda: node.schedules.delete(TENANT, ref),
    ]
    for operation in operations:
        with pytest.raises(NotFound):
            await operation()


async def test_another_tenants_schedule_is_not_found_by_name_or_id(node: SteppedNode) -> None:
    job = await node.put()
    for ref in ("job", str(job.id)):
        with pytest.raises(NotFound):
            await node.schedules.get(OTHER_TENANT, ref)
        with pytest.raises(NotFound):
            await node.schedules.delete(OTHER_TENANT, ref)
    assert await node.schedules.page(OTHER_TENANT, ScheduleFilter(), after_name=None, limit=10) == []


async def test_a_deleted_schedule_is_not_found_and_its_name_is_free(node: SteppedNode) -> None:
    job = await node.put()
    await node.schedules.delete(TENANT, "job")
    with pytest.raises(NotFound):
        await get(node)
    assert (await node.put()).id != job.id


# Concurrent operations


async def test_concurrent_edits_all_take_effect(node: SteppedNode) -> None:
    await node.put()
    patches = [{"priority": 1}, {"description": "two"}, {"max_attempts": 7}, {"timeout_seconds": 5}, {"labels": {"a": "b"}}]
    await asyncio.gather(*(node.schedules.patch(TENANT, "job", patch, now=NOW) for patch in patches))
    after = await get(node)
    assert after.revision == 6
    spec = after.spec
    assert (spec.priority, spec.description, spec.max_attempts, spec.timeout_seconds, spec.labels) == (
        1,
        "two",
        7,
        5,
        {"a": "b"},
    )


async def test_an_edit_concurrent_with_a_firing_is_decided_again(store: Store) -> None:
    class RacingStore(StoreOverride):
        """Fires a tick between the read and the write of an operation."""

        is_racing = False

        async def schedule_write(self, *args: Any, **more: Any) -> ScheduleWriteResult:
            if self.is_racing:
                self.is_racing = False
                await stepped.step(NOW + minutes(1))
            written: ScheduleWriteResult = await self.inner.schedule_write(*args, **more)
            return written

    racing = RacingStore(store)
    stepped = SteppedNode(racing)
    job = await stepped.put()
    racing.is_racing = True
    await stepped.schedules.pause(TENANT, "job", note=None, now=NOW + minutes(1))
    assert ledger_summary(await ledger(store, job.id)) == [(60, "fired", 1)]
    assert (await find(store, job)).status is Status.PAUSED


async def test_an_operation_that_always_conflicts_fails_with_a_conflict(store: Store) -> None:
    class RejectingStore(StoreOverride):
        async def schedule_write(self, _tenant: Any, writes: list[ScheduleWrite], **_more: Any) -> ScheduleWriteResult:
            if writes[0].expected is not None:
                return NOT_WRITTEN
            written: ScheduleWriteResult = await self.inner.schedule_write(_tenant, writes, **_more)
            return written

    node = SteppedNode(RejectingStore(store))
    await node.put()
    with pytest.raises(Conflict, match="too many times"):
        await node.schedules.patch(TENANT, "job", {"priority": 1}, now=NOW)


async def test_a_change_of_a_tick_due_soon_publishes_a_notice(node: SteppedNode) -> None:
    notices: list[Notice] = []
    node.store.subscribe(notices.append)
    await node.put("far", cron="0 0 1 1 *")
    assert notices == []
    await node.put("soon")
    assert notices == [Notice.SCHEDULES]

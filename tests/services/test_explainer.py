"""Why a schedule did, did not or will run: one test for each verdict and each distinguishable reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.calendars import parse_calendar
from everbeat.core.explain import Explanation, Verdict
from everbeat.core.pauses import Pause
from everbeat.core.protocol import (
    ErrorInput,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
)
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.task_explanations import Value
from everbeat.services.explainer import Explainer, TaskExplanation
from everbeat.store.base import Store
from tests.factories import NOW, SteppedNode, execute_raw, make_task, minutes, seconds


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def explain(node: SteppedNode, at: datetime | None = None, *, retention_days: float = 90) -> Explanation:
    explainer = Explainer(node.store, node.schedules, node.tasks, node.timelines, late_seconds=5, retention_days=retention_days)
    return await explainer.explain(DEFAULT_TENANT, "job", at, now=node.now)


def facts_of(why: Explanation) -> dict[str, Value]:
    return {one.fact: one.value for one in why.facts}


async def finish(node: SteppedNode, **failing: Any) -> None:
    (task,) = await node.leases.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w1", queues=["default"]), now=node.now)
    if failing:
        failure = LeaseFailure(id=task.id, fence=task.fence, error=ErrorInput(message="no"), **failing)
        await node.leases.fail(DEFAULT_TENANT, LeaseFailRequest(worker="w1", failures=[failure]), now=node.now)
    else:
        result = LeaseCompletion(id=task.id, fence=task.fence)
        await node.leases.complete(DEFAULT_TENANT, LeaseCompleteRequest(worker="w1", results=[result]), now=node.now)


async def test_fired_describes_the_state_of_the_task(node: SteppedNode) -> None:
    await node.put()
    await node.step(NOW + minutes(1) + seconds(1))
    why = await explain(node, NOW + minutes(1))
    assert why.verdict is Verdict.FIRED
    assert 'no worker has claimed it from the queue "default"' in why.explanation
    await finish(node)
    why = await explain(node, NOW + minutes(1))
    assert "completed after 1 attempt" in why.explanation
    facts = facts_of(why)
    assert (facts["task_state"], facts["attempts"], facts["lag_ms"], facts["worker"]) == ("completed", 1, 1000.0, "w1")


async def test_fired_and_dead_names_the_reason(node: SteppedNode) -> None:
    await node.put()
    await node.step(NOW + minutes(1) + seconds(1))
    await finish(node, retryable=False)
    why = await explain(node, NOW + minutes(1))
    assert why.verdict is Verdict.FIRED
    assert "dead letter after 1 attempt" in why.explanation
    assert facts_of(why)["task_state"] == "dead"


async def test_skipped_for_overlap_names_the_unfinished_task(node: SteppedNode) -> None:
    await node.put()
    await node.run(NOW + minutes(2) + seconds(1), by_seconds=61)
    task_id = facts_of(await explain(node, NOW + minutes(1)))["task_id"]
    why = await explain(node, NOW + minutes(2))
    assert why.verdict is Verdict.SKIPPED
    facts = facts_of(why)
    assert (facts["reason"], facts["overlap"], facts["unfinished_task"]) == ("overlap", "skip", f"{task_id} is unfinished")
    node.move_to(node.now + seconds(9))
    await finish(node)
    assert str(facts_of(await explain(node, NOW + minutes(2)))["unfinished_task"]).startswith(f"{task_id} finished at ")


async def test_skipped_as_a_misfire_shows_the_range(node: SteppedNode) -> None:
    await node.put()
    await node.step(NOW + minutes(4) + seconds(10))
    why = await explain(node, NOW + minutes(2))
    facts = facts_of(why)
    assert (why.verdict, facts["reason"], facts["range_count"]) == (Verdict.SKIPPED, "misfire", 3)
    assert "catch_up latest" in why.explanation
    assert (await explain(node, NOW + minutes(2) + seconds(30))).verdict is Verdict.NOT_SCHEDULED


async def test_skipped_by_a_pause_in_the_past_and_in_the_future(node: SteppedNode) -> None:
    await node.put()
    await node.schedules.pause(DEFAULT_TENANT, "job", note="migration", now=NOW + minutes(1))
    node.move_to(NOW + minutes(3))
    for at in (1, 2, 3):
        why = await explain(node, NOW + minutes(at))
        assert (why.verdict, facts_of(why)["note"]) == (Verdict.SKIPPED, "migration")
    why = await explain(node, NOW + minutes(4))
    assert why.verdict is Verdict.WILL_SKIP
    assert why.explanation == "It will not run: the schedule is paused."
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    assert (await explain(node, NOW + minutes(2))).explanation == "It did not run: the schedule was paused."


async def test_skipped_for_quota(node: SteppedNode) -> None:
    await node.put()
    await node.step(NOW + minutes(1) + seconds(1))
    await execute_raw(node.store, "UPDATE ticks SET outcome = 'skipped', reason = 'quota', task_id = NULL")
    why = await explain(node, NOW + minutes(1))
    assert (why.verdict, facts_of(why)["reason"]) == (Verdict.SKIPPED, "quota")


async def test_missing(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.run(NOW + minutes(3), by_seconds=60)
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", NOW + minutes(2))
    why = await explain(node, NOW + minutes(2))
    assert why.verdict is Verdict.MISSING
    assert "backfill" in why.explanation


async def test_due_and_then_missing(node: SteppedNode) -> None:
    await node.put()
    node.move_to(NOW + minutes(1) + seconds(2))
    assert (await explain(node, NOW + minutes(1))).verdict is Verdict.DUE
    node.move_to(NOW + minutes(1) + seconds(9))
    assert (await explain(node, NOW + minutes(1))).verdict is Verdict.MISSING


async def test_upcoming_with_its_jitter(node: SteppedNode) -> None:
    job = await node.put(jitter_seconds=30)
    why = await explain(node, NOW + minutes(1))
    assert why.verdict is Verdict.UPCOMING
    assert "seconds of jitter" in why.explanation
    assert job.due_at is not None
    assert str(facts_of(why)["due_at"]).startswith(job.due_at.strftime("%Y-%m-%dT%H:%M:%S"))


async def test_will_skip_by_a_calendar(node: SteppedNode) -> None:
    calendar = parse_calendar("off", {"dates": ["2026-03-03"]}, revision=1, today=NOW.date())
    await node.store.calendar_write(DEFAULT_TENANT, calendar, now=NOW)
    await node.put(calendars={"exclude": ["off"]})
    why = await explain(node, NOW + timedelta(days=1))
    assert (why.verdict, facts_of(why)["calendars_excluded"]) == (Verdict.WILL_SKIP, "off")
    assert (await explain(node, NOW + timedelta(days=2))).verdict is Verdict.UPCOMING


async def test_will_skip_in_a_dst_gap(node: SteppedNode) -> None:
    await node.put(cron="30 2 * * *", timezone="Europe/Paris", dst={"gap": "skip", "fold": "first"})
    lines = [one async for one in _gap_ticks(node)]
    why = await explain(node, lines[0])
    assert (why.verdict, facts_of(why)["reason"]) == (Verdict.WILL_SKIP, "dst_gap")
    assert facts_of(why)["clock_change"] == "2026-03-29: from 02:00 to 03:00 in Europe/Paris"


async def _gap_ticks(node: SteppedNode) -> Any:
    """Yield the ticks that the DST gap skips."""
    schedule = await node.schedules.get(DEFAULT_TENANT, "job")
    timeline = node.timelines.get(schedule.spec.rule, schedule.id, {})
    for tick in timeline.occurrences(NOW, NOW + timedelta(days=60)):
        if tick.skip is not None:
            yield tick.at


async def test_not_scheduled_names_the_adjacent_ticks_in_local_time(node: SteppedNode) -> None:
    await node.put(cron="0 9 * * *", timezone="Europe/Paris")
    why = await explain(node, NOW + timedelta(days=3))
    facts = facts_of(why)
    assert why.verdict is Verdict.NOT_SCHEDULED
    assert facts["previous_tick_local"] == "2026-03-05T09:00:00+01:00"
    assert facts["next_tick"] == "2026-03-06T08:00:00.000000Z"


async def test_not_scheduled_at_the_other_of_two_equal_wall_times(node: SteppedNode) -> None:
    await node.put(cron="30 2 * * *", timezone="Europe/Paris")
    first, second = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert (await explain(node, first)).verdict is Verdict.UPCOMING
    why = await explain(node, second)
    assert why.verdict is Verdict.NOT_SCHEDULED
    assert "02:30 occurs twice on that day in Europe/Paris; the schedule runs at the first one" in why.explanation


async def test_not_scheduled_outside_of_its_window(node: SteppedNode) -> None:
    await node.put(starts_at="2026-03-10T00:00:00Z", ends_at="2026-03-20T00:00:00Z")
    assert "starts later, at 2026-03-10" in (await explain(node, NOW + minutes(1))).explanation
    assert "ended at 2026-03-20" in (await explain(node, NOW + timedelta(days=30))).explanation


async def test_without_an_instant_the_latest_expected_tick_is_explained(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    node.move_to(NOW + seconds(30))
    first = await explain(node)  # none was expected yet
    assert (first.verdict, facts_of(first)["at"]) == (Verdict.UPCOMING, "2026-03-02T12:01:00.000000Z")
    await node.run(NOW + minutes(3) + seconds(1), by_seconds=60)
    latest = await explain(node)
    assert (latest.verdict, facts_of(latest)["at"]) == (Verdict.FIRED, "2026-03-02T12:03:00.000000Z")
    await node.put(cron="0 0 * * *")  # the new rule had no tick yet, so the last tick of the old one is the latest
    edited = await explain(node)
    assert (edited.verdict, facts_of(edited)["at"]) == (Verdict.FIRED, "2026-03-02T12:03:00.000000Z")
    await execute_raw(node.store, "DELETE FROM ticks")
    await node.store.schedule_fault({job.id: "broken"}, now=node.now)
    assert (await explain(node)).verdict is Verdict.FAULTY


async def test_an_instant_between_ticks_names_the_ones_before_and_after_and_the_edit(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.step(NOW + minutes(1) + seconds(1))
    between = await explain(node, NOW + seconds(90))
    assert between.explanation.startswith(
        "The schedule has no tick at that time; the one before is 2026-03-02 12:01:00+00:00, "
        "the next one is 2026-03-02 12:02:00+00:00. "
    )
    node.move_to(NOW + minutes(2) - seconds(10))
    await node.put(cron="0 0 * * *")
    removed = await explain(node, NOW + minutes(2))
    assert (removed.verdict, facts_of(removed)["rule_changed_at"]) == (Verdict.NOT_SCHEDULED, "2026-03-02T12:01:50.000000Z")
    assert "the rule was changed at 2026-03-02 12:01:50+00:00" in removed.explanation


async def test_fired_names_the_node_and_a_late_firing(node: SteppedNode) -> None:
    await node.put()
    await node.step(NOW + minutes(1) + seconds(8))
    why = await explain(node, NOW + minutes(1))
    assert f"by the node {facts_of(why)['fired_by']}" in why.explanation
    assert "8 seconds late" in why.explanation
    assert {one.fact: one.link for one in why.facts}["task_id"] == f"/v1/tasks/{facts_of(why)['task_id']}"


async def test_a_due_tick_without_an_owner_names_the_partition(node: SteppedNode) -> None:
    job = await node.put()
    node.move_to(NOW + minutes(1) + seconds(1))
    await execute_raw(node.store, "UPDATE partitions SET owner = NULL, lease_until = NULL")
    why = await explain(node, NOW + minutes(1))
    assert why.verdict is Verdict.DUE
    assert f"no node owns the partition {job.partition}" in why.explanation


async def test_a_task_names_its_position_pause_quota_and_holders(node: SteppedNode) -> None:
    async def why(task_id: UUID) -> TaskExplanation:
        explainer = Explainer(node.store, node.schedules, node.tasks, node.timelines, late_seconds=5, retention_days=90)
        return await explainer.explain_task(DEFAULT_TENANT, task_id, now=node.now)

    first, second, urgent = make_task("a"), make_task("a"), make_task("a", priority=1)
    await node.store.task_submit([first, second, urgent], now=NOW)
    node.move_to(NOW + minutes(4))
    assert (await why(second.id)).explanation.startswith(
        'It has been ready for 4 minutes at position 3 in the queue "default"; no worker has asked for'
    )
    assert "at position 1 in" in (await why(urgent.id)).explanation
    pause = Pause(id=UUID(int=1), tenant_id=DEFAULT_TENANT, queue="default", paused_by="ann", note="upgrade", since_at=NOW)
    await node.store.pause_write(pause, now=node.now)
    found = await why(second.id)
    assert 'the queue "default" is paused by ann' in found.explanation
    assert {one.fact: one.value for one in found.facts}["note"] == "upgrade"


async def test_not_registered(node: SteppedNode) -> None:
    await node.put()
    assert (await explain(node, NOW - minutes(5))).verdict is Verdict.NOT_REGISTERED


async def test_finished(node: SteppedNode) -> None:
    await node.put(at="2026-03-02T12:01:00Z")
    await node.step(NOW + minutes(1) + seconds(1))
    assert (await explain(node, NOW + minutes(1))).verdict is Verdict.FIRED
    assert (await explain(node, NOW + minutes(2))).verdict is Verdict.FINISHED


async def test_faulty(node: SteppedNode) -> None:
    job = await node.put()
    await node.store.schedule_fault({job.id: "the database refused it"}, now=node.now)
    why = await explain(node, NOW + minutes(1))
    assert (why.verdict, facts_of(why)["fault"]) == (Verdict.FAULTY, "the database refused it")
    await execute_raw(node.store, "UPDATE schedules SET timezone = 'Mars/Olympus'")
    assert (await explain(node, NOW + minutes(1))).verdict is Verdict.FAULTY


async def test_a_past_tick_is_explained_by_the_rule_of_its_time(node: SteppedNode) -> None:
    await node.put()
    await node.step(NOW + minutes(1) + seconds(1))
    node.move_to(NOW + minutes(2) - seconds(10))
    await node.put(cron="0 0 * * *")
    why = await explain(node, NOW + minutes(1))
    assert (why.verdict, facts_of(why)["is_past_rule"]) == (Verdict.FIRED, True)
    assert facts_of(why)["trigger"] == "Every minute, UTC"
    assert (await explain(node, NOW + minutes(2))).verdict is Verdict.NOT_SCHEDULED


async def test_forgotten(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.run(NOW + minutes(2), by_seconds=60)
    await execute_raw(node.store, "DELETE FROM ticks")
    node.move_to(NOW + timedelta(days=3))
    assert (await explain(node, NOW + minutes(1), retention_days=2)).verdict is Verdict.FORGOTTEN
    assert (await explain(node, NOW + minutes(1), retention_days=4)).verdict is Verdict.MISSING


async def test_a_tick_past_the_retention_of_its_tenant_is_forgotten_and_not_missing(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.run(NOW + minutes(2), by_seconds=60)
    await execute_raw(node.store, "DELETE FROM ticks")
    node.move_to(NOW + timedelta(days=3))
    await node.engine.tenants.patch(str(DEFAULT_TENANT), {"retention_days": 2}, now=node.now)
    await node.engine.directory.refresh(now=node.now)
    engine = node.engine
    explainer = Explainer(
        node.store, node.schedules, node.tasks, node.timelines, late_seconds=5, retention_days=90, directory=engine.directory
    )
    found = await explainer.explain(DEFAULT_TENANT, "job", NOW + minutes(1), now=node.now)
    assert found.verdict is Verdict.FORGOTTEN

"""Alert rules: what opens an incident of each kind, what ends it, and what is sent."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from everbeat.core.checks import Check, CheckChange, CheckState, DownReason
from everbeat.core.incidents import IncidentResolution, IncidentState
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.events import IncidentsChanged, IncidentsOpen, LoopFailed
from everbeat.store.base import Store
from tests.contract.test_checks import make_check
from tests.factories import NOW, OTHER_TENANT, StoreOverride, minutes, open_second_store, seconds
from tests.services.alerting import AlertingNode
from tests.services.workers import Worker

EVERY_MINUTE = {"every_seconds": 60, "anchor": "2026-03-02T12:00:00Z"}
NIGHTLY = {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}


@pytest.fixture
async def node(store: Store) -> AlertingNode:
    made = AlertingNode(store)
    await made.renew()
    return made


async def opened(node: AlertingNode, *subjects: str) -> list[Any]:
    await node.evaluate()
    found = await node.unresolved()
    assert sorted(one.subject_name for one in found) == sorted(subjects)
    return found


# The kinds


async def test_dead_opens_with_a_dead_letter_and_ends_with_a_completion(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"})
    for _ in range(2):
        await node.submit()
        await node.run_task(takes=1, fails=True)
    (incident,) = await opened(node, "work in queue default")
    assert (incident.count, incident.summary) == (2, "work in queue default: a task became a dead letter: it broke")
    assert incident.task_id is not None
    await opened(node, "work in queue default")
    await node.submit()
    await node.run_task(takes=1)
    await opened(node)
    assert await node.events_sent() == ["opened", "resolved"]


async def test_dead_counts_further_dead_letters_without_another_message(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"})
    for expected in (1, 2, 3):
        await node.submit()
        await node.run_task(takes=1, fails=True)
        (incident,) = await opened(node, "work in queue default")
        assert incident.count == expected
    assert await node.events_sent() == ["opened"]


async def test_dead_of_a_schedule_ends_when_the_schedule_completes(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE)
    await node.rule(when={"kind": "dead"}, match={"schedule": "job"})
    await node.submit()
    await node.run_task(fails=True)
    await node.step(NOW + minutes(1))
    await node.run_task(takes=1, fails=True)
    await opened(node, "job")
    await node.submit()
    await node.run_task()
    await opened(node, "job")
    await node.step(NOW + minutes(2))
    await node.run_task()
    await opened(node)


async def test_missed_opens_with_a_misfire_and_ends_with_a_tick_that_fires(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE, catch_up="none")
    await node.rule(when={"kind": "missed"})
    node.move_to(NOW + minutes(10))
    await node.renew()
    await node.tick()
    (incident,) = await opened(node, "job")
    assert (incident.count, incident.occurred_at) == (9, NOW + minutes(9))
    await opened(node)
    assert await node.events_sent() == ["opened", "resolved"]


async def test_late_opens_with_an_overdue_tick_and_ends_with_one_in_time(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE)
    await node.rule(when={"kind": "late", "seconds": 30})
    node.move_to(NOW + seconds(80))
    await opened(node)
    node.move_to(NOW + seconds(95))
    (incident,) = await opened(node, "job")
    assert (incident.occurred_at, incident.count) == (NOW + minutes(1), 1)
    await node.renew()
    await node.tick()
    await opened(node, "job")
    await node.step(NOW + minutes(2))
    await opened(node)


async def at(node: AlertingNode, text: str) -> None:
    """Move to a time of the next day in Berlin, evaluate, and keep the lease."""
    node.move_to(datetime.fromisoformat(f"2026-03-03T{text}+01:00"))
    await node.renew()


async def test_deadline_opens_if_the_schedule_is_not_done_and_ends_when_it_is(node: AlertingNode) -> None:
    await node.put("report", **NIGHTLY)
    await node.rule(when={"kind": "deadline", "by": "04:00"})
    await opened(node)
    await at(node, "02:00:00")
    await node.tick()
    await at(node, "03:59:59")
    await opened(node)
    await at(node, "04:00:00")
    (incident,) = await opened(node, "report")
    assert incident.summary == "report was not done by 04:00 (Europe/Berlin)"
    await at(node, "04:30:00")
    await opened(node, "report")
    await node.run_task()
    await opened(node)
    assert await node.events_sent() == ["opened", "resolved"]


async def test_deadline_opens_if_the_tick_never_fired(node: AlertingNode) -> None:
    await node.put("report", **NIGHTLY)
    await node.rule(when={"kind": "deadline", "by": "04:00"}, match={"schedule": "report"})
    await node.evaluate()
    await at(node, "04:00:01")
    await opened(node, "report")


async def test_deadline_is_met_by_a_run_in_time(node: AlertingNode) -> None:
    await node.put("report", **NIGHTLY)
    await node.rule(when={"kind": "deadline", "by": "04:00"})
    await node.evaluate()
    await at(node, "02:00:00")
    await node.tick()
    await node.run_task(takes=1800)
    await at(node, "05:00:00")
    await opened(node)


async def test_deadline_concerns_only_active_schedules_that_had_a_tick_and_match(node: AlertingNode) -> None:
    await node.put("weekly", cron="0 2 * * SUN", timezone="Europe/Berlin")
    await node.put("paused", **NIGHTLY, labels={"team": "a"})
    await node.put("other", **NIGHTLY, labels={"team": "b"})
    await node.put("tokyo", cron="0 2 * * *", timezone="Asia/Tokyo", labels={"team": "a"})
    await node.put("late", **NIGHTLY, labels={"team": "a"})
    await node.schedules.pause(DEFAULT_TENANT, "paused", note=None, now=node.now)
    await node.rule("a", when={"kind": "deadline", "by": "04:00"}, match={"label": "team=a"})
    await node.rule("b", when={"kind": "deadline", "by": "04:00", "even_if_paused": True}, match={"schedule": "paused"})
    await node.rule("c", when={"kind": "deadline", "by": "04:00"}, match={"schedule": "weekly"})
    await node.evaluate()
    await at(node, "01:00:00")
    await opened(node, "tokyo")
    await at(node, "04:00:01")
    await opened(node, "late", "paused", "tokyo")


async def test_deadline_is_judged_page_by_page(node: AlertingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbeat.services.alert_deadlines._SCHEDULE_PAGE", 2)
    for number in range(5):
        await node.put(f"report{number}", **NIGHTLY)
    await node.rule(when={"kind": "deadline", "by": "04:00", "timezone": "Europe/Berlin"})
    await node.evaluate()
    await at(node, "04:00:01")
    await node.engine.alert_evaluator.run_once(node.now)
    assert len(await node.unresolved()) == 2
    node.move_to(node.now + minutes(1))
    await opened(node, *(f"report{number}" for number in range(5)))


async def test_deadline_is_not_judged_for_the_time_before_the_rule(node: AlertingNode) -> None:
    await node.put("report", **NIGHTLY)
    await at(node, "04:00:01")
    await node.rule(when={"kind": "deadline", "by": "04:00"})
    await opened(node)


async def test_slow_opens_while_a_task_runs_and_ends_with_a_fast_run(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE)
    await node.rule(when={"kind": "slow", "seconds": 20})
    await node.step(NOW + minutes(1))
    worker = Worker(node)
    task = await worker.claim_one(lease_seconds=3600)
    node.move_to(NOW + minutes(1) + seconds(20))
    await opened(node)
    node.move_to(NOW + minutes(1) + seconds(21))
    (incident,) = await opened(node, "job")
    assert incident.summary == "job: a task has been running for 21 s, longer than 20 s"
    await worker.complete(task)
    (incident,) = await opened(node, "job")
    assert incident.count == 1
    await node.step(NOW + minutes(2))
    await node.run_task(takes=5)
    await opened(node)
    assert await node.events_sent() == ["opened", "resolved"]


async def test_slow_finds_a_run_that_ended_between_two_passes(node: AlertingNode) -> None:
    await node.rule(when={"kind": "slow", "seconds": 20})
    await node.submit()
    await node.run_task(takes=20.5)
    await opened(node, "work in queue default")
    await opened(node)


async def test_slow_compares_with_the_usual_duration(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE)
    await node.rule(when={"kind": "slow", "times_usual": 3})
    for minute, takes in enumerate((4, 4, 5, 6, 30), start=1):
        await node.step(NOW + minutes(minute))
        await node.run_task(takes=takes)
        await opened(node)
    await node.step(NOW + minutes(6))
    await node.run_task(takes=16)
    (incident,) = await opened(node, "job")
    assert incident.summary == "job: a task took 16 s, longer than 15 s; usual is 5 s"
    await node.step(NOW + minutes(7))
    await node.run_task(takes=5)
    await opened(node)


async def test_success_rate_opens_below_the_limit_and_ends_above_it(node: AlertingNode, store: Store) -> None:
    await node.rule(when={"kind": "success_rate", "below": 0.75, "min_runs": 4, "window_seconds": 3600})
    node.move_to(datetime.now(node.now.tzinfo))
    await node.renew()
    for fails in (True, False, False):
        await node.submit()
        await node.run_task(fails=fails)
    await opened(node)
    await node.submit()
    await node.run_task(fails=True)
    (incident,) = await opened(node, "all matching tasks")
    assert incident.summary.startswith("all tasks: 2 of 4 tasks were completed in 1 h")
    for _ in range(4):
        await node.submit()
        await node.run_task()
    await opened(node)


async def test_success_rate_of_a_schedule(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE)
    rule = {"kind": "success_rate", "below": 0.5, "min_runs": 2, "window_seconds": 600}
    await node.rule(when=rule, match={"schedule": "job"})
    for minute in (1, 2):
        await node.step(NOW + minutes(minute))
        await node.run_task(fails=True)
    await opened(node, "all matching tasks")
    node.move_to(NOW + minutes(20))
    await opened(node)


async def test_queue_age_opens_for_a_waiting_task_and_ends_when_it_is_taken(node: AlertingNode) -> None:
    await node.rule(when={"kind": "queue_age", "seconds": 60}, match={"queue": "default"})
    await node.submit()
    await node.submit(queue="other")
    node.move_to(NOW + seconds(60))
    await opened(node)
    node.move_to(NOW + seconds(61))
    await opened(node, "queue default")
    await node.run_task()
    await opened(node)


async def test_no_worker_opens_until_a_worker_asks(node: AlertingNode) -> None:
    await node.rule(when={"kind": "no_worker", "seconds": 30})
    await node.submit()
    node.move_to(NOW + seconds(31))
    (incident,) = await opened(node, "work in queue default")
    assert "no worker has asked for the queue" in incident.summary
    await Worker(node).claim(queues=["default"], types=["something"])
    await node.engine.worker_recorder.run_once(node.now)
    await opened(node, "work in queue default")
    await node.submit("first")
    await Worker(node, "second").claim(queues=["default"])
    await node.engine.worker_recorder.run_once(node.now)
    await opened(node)


async def test_skipped_opens_after_several_skips_in_a_row_and_ends_with_a_fired_tick(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE, overlap="skip")
    await node.rule(when={"kind": "skipped", "in_a_row": 3})
    for minute in (1, 2, 3):
        await node.step(NOW + minutes(minute))
        await opened(node)
    await node.step(NOW + minutes(4))
    (incident,) = await opened(node, "job")
    assert incident.summary == "job: the last 3 ticks were skipped (overlap, misfire, quota)"
    await node.run_task()
    await node.step(NOW + minutes(5))
    await opened(node)


async def test_skipped_counts_only_its_reasons(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE, overlap="skip")
    await node.rule(when={"kind": "skipped", "in_a_row": 1, "reasons": ["quota"]})
    for minute in (1, 2, 3):
        await node.step(NOW + minutes(minute))
    await opened(node)


# Notifications


async def fail_task(node: AlertingNode, type_: str = "work") -> None:
    await node.submit(type_)
    await node.run_task(takes=1, fails=True)


async def test_a_notification_says_what_happened_and_where_to_read_more(node: AlertingNode) -> None:
    await node.rule("failures", when={"kind": "dead"}, description="Look at the runbook.")
    await fail_task(node)
    await node.evaluate()
    (task,) = await node.notifications()
    (incident,) = await node.unresolved()
    (payload,) = await node.sent()
    assert (task.queue, task.type, task.priority, task.labels["incident"]) == ("alerts", "tell", 10, str(incident.id))
    assert (payload["event"], payload["alert"], payload["kind"], payload["count"]) == ("incident.opened", "failures", "dead", 1)
    assert payload["title"] == f"Alert: {incident.summary}"
    (shown,) = payload["incidents"]
    assert shown["url"] == f"http://127.0.0.1:8080/incidents/{incident.id}"
    assert shown["why"] == f"http://127.0.0.1:8080/v1/tasks/{incident.task_id}/why"
    assert "Look at the runbook." in payload["text"]
    assert shown["why"] in payload["text"]


async def test_each_recipient_gets_one_task(node: AlertingNode) -> None:
    targets = [{"kind": "worker", "type": "a"}, {"kind": "http", "url": "https://example.org/"}]
    await node.rule(when={"kind": "dead"}, notify=targets)
    await fail_task(node)
    await node.evaluate()
    await node.evaluate()
    found = [(task.queue, task.type, task.fair_key) for task in await node.notifications()]
    assert found == [("default", "a", ""), ("everbeat:http", "alert", "example.org")]


async def test_incidents_that_open_together_are_reported_together(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"}, group_seconds=60)
    for type_ in ("a", "b"):
        await fail_task(node, type_)
    await node.evaluate()
    await fail_task(node, "c")
    await node.evaluate()
    await fail_task(node, "d")
    await node.evaluate()
    assert [(one["title"], one["count"]) for one in await node.sent()] == [("Alert: 2 incidents of rule", 2)]
    node.move_to(NOW + minutes(2))
    await node.evaluate()
    assert [one["count"] for one in await node.sent()] == [2, 2]


async def test_a_message_lists_a_limited_number_of_incidents(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"})
    for number in range(25):
        await fail_task(node, f"type{number}")
    await node.evaluate()
    (payload,) = await node.sent()
    assert (payload["count"], len(payload["incidents"])) == (25, 20)
    assert payload["text"].endswith("and 5 more")


async def test_reminders_are_sent_until_somebody_acknowledges(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"}, remind_seconds=600)
    await fail_task(node)
    for minute in (1, 5, 12, 15, 23):
        node.move_to(NOW + minutes(minute))
        await node.evaluate()
    assert await node.events_sent() == ["opened", "reminder", "reminder"]
    (incident,) = await node.unresolved()
    assert incident.reminders == 2
    await node.store.incident_acknowledge(DEFAULT_TENANT, incident.id, actor="ann", note=None, now=node.now)
    node.move_to(NOW + minutes(60))
    await node.evaluate()
    await node.submit()
    await node.run_task(takes=1)
    await node.evaluate()
    assert await node.events_sent() == ["opened", "reminder", "reminder", "resolved"]


async def test_the_end_is_not_reported_if_the_rule_says_so(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"}, notify_resolved=False)
    await fail_task(node)
    await node.evaluate()
    await node.submit()
    await node.run_task(takes=1)
    await node.evaluate()
    assert await node.unresolved() == []
    assert await node.events_sent() == ["opened"]


QUIET = {"timezone": "UTC", "hours": [{"from": "12:00", "to": "13:00"}]}


async def test_in_quiet_hours_nothing_is_sent_and_afterwards_what_is_still_open(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"}, quiet=QUIET, remind_seconds=60)
    await fail_task(node, "over")
    await node.evaluate()
    await node.submit("over")
    await node.run_task(takes=1)
    await fail_task(node, "open")
    node.move_to(NOW + minutes(30))
    await opened(node, "open in queue default")
    assert await node.sent() == []
    node.move_to(NOW + minutes(60))
    await node.evaluate()
    assert [(one["event"], one["incidents"][0]["subject"]) for one in await node.sent()] == [
        ("incident.opened", "open in queue default")
    ]


async def test_in_a_maintenance_window_nothing_is_sent(node: AlertingNode) -> None:
    window = {"from": "2026-03-02T12:00:00Z", "to": "2026-03-02T12:10:00Z"}
    await node.rule(when={"kind": "dead"}, quiet={"maintenance": [window]})
    await fail_task(node)
    await node.evaluate()
    assert await node.sent() == []
    node.move_to(NOW + minutes(10))
    await node.evaluate()
    assert await node.events_sent() == ["opened"]


# Safety


async def test_failures_of_notifications_open_no_incidents(node: AlertingNode) -> None:
    kinds: list[dict[str, Any]] = [{"kind": "dead"}, {"kind": "slow", "seconds": 5}, {"kind": "queue_age", "seconds": 5}]
    kinds += [{"kind": "no_worker", "seconds": 5}, {"kind": "success_rate", "below": 1, "min_runs": 1}]
    for when in kinds:
        await node.rule(when["kind"], when=when)
    await fail_task(node)
    await node.evaluate()
    known = len(await node.incidents())
    for _ in range(3):
        node.move_to(node.now + seconds(30))
        while (await node.notifications()) and (await node.notifications())[0].state == "ready":
            await node.run_task(takes=10, fails=True, queue="alerts")
        await node.evaluate()
    assert len(await node.incidents()) == known


async def test_two_evaluations_at_a_time_send_once(node: AlertingNode, store: Store) -> None:
    await node.rule(when={"kind": "dead"})
    await fail_task(node)
    second = AlertingNode(open_second_store(store), now=node.now)
    second.engine.alert_evaluator.is_owner = lambda: True  # type: ignore[method-assign]
    try:
        (tenant,) = await store.alert_tenants(after=None, limit=10)
        for one in (node, second, node):
            await one.engine.alert_evaluator._evaluate(tenant, node.now)  # all have read the same version
    finally:
        await second.store.close()
    assert await node.events_sent() == ["opened"]
    assert len(await node.incidents()) == 1


async def test_only_the_owner_of_partition_0_evaluates(store: Store) -> None:
    node = AlertingNode(store)
    await node.rule(when={"kind": "dead"})
    await fail_task(node)
    await node.evaluate()
    assert await node.incidents() == []
    await node.renew()
    await opened(node, "work in queue default")


async def test_a_rule_that_cannot_be_judged_does_not_stop_the_others(
    node: AlertingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.rule("broken", when={"kind": "queue_age", "seconds": 5})
    await node.rule("works", when={"kind": "dead"})

    async def broken(*_arguments: Any, **_more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("everbeat.services.alert_facts.TenantFacts.ready_ages", broken)
    await fail_task(node)
    await opened(node, "work in queue default")
    assert [event.loop for event in node.events_of(LoopFailed)] == ["alerts: broken"]


async def test_a_pass_without_news_writes_nothing(node: AlertingNode) -> None:
    class Counting(StoreOverride):
        writes = 0

        async def alert_apply(self, *arguments: Any, **more: Any) -> bool:
            self.writes += 1
            return bool(await self.inner.alert_apply(*arguments, **more))

    counting = Counting(node.store)
    other = AlertingNode(counting, now=node.now)
    other.engine.alert_evaluator.is_owner = lambda: True  # type: ignore[method-assign]
    await other.rule(when={"kind": "queue_age", "seconds": 60})
    await other.submit()
    other.move_to(NOW + seconds(61))
    await other.evaluate()
    assert counting.writes == 1
    other.move_to(NOW + seconds(90))
    await other.evaluate()
    assert counting.writes == 1
    other.move_to(NOW + seconds(130))
    await other.evaluate()
    assert counting.writes == 2


async def test_incidents_of_removed_and_disabled_rules_and_schedules_end_in_silence(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE, catch_up="none")
    await node.rule("missed", when={"kind": "missed"})
    await node.rule("dead", when={"kind": "dead"})
    node.move_to(NOW + minutes(10))
    await node.renew()
    await node.tick()
    await node.submit(queue="second")
    await node.run_task(fails=True, queue="second")
    await opened(node, "job", "work in queue second")
    await node.schedules.delete(DEFAULT_TENANT, "job", now=node.now)
    await node.rule("dead", when={"kind": "dead"}, enabled=False)
    await opened(node)
    assert {one.resolution for one in await node.incidents()} == {IncidentResolution.REMOVED}
    assert await node.events_sent() == ["opened", "opened"]


async def test_a_slow_task_of_a_removed_schedule_is_one_incident_until_it_ends(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE)
    await node.rule(when={"kind": "slow", "seconds": 20})
    await node.step(NOW + minutes(1))
    worker = Worker(node)
    task = await worker.claim_one(lease_seconds=3600)
    node.move_to(NOW + minutes(1) + seconds(21))
    await opened(node, "job")
    await node.schedules.delete(DEFAULT_TENANT, "job", now=node.now)
    for _ in range(3):
        node.move_to(node.now + seconds(5))
        await opened(node, "work in queue default")
    await worker.complete(task)
    await node.evaluate()
    await opened(node)
    assert await node.events_sent() == ["opened", "opened", "resolved"]


async def test_a_dead_letter_of_a_removed_schedule_is_reported(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE)
    await node.rule(when={"kind": "dead"})
    await node.step(NOW + minutes(1))
    await node.schedules.delete(DEFAULT_TENANT, "job", now=node.now)
    await node.run_task(fails=True)
    await opened(node, "work in queue default")
    await opened(node, "work in queue default")
    await node.submit()
    await node.run_task(takes=5)
    await opened(node)


async def test_a_rule_that_gets_another_kind_opens_another_incident_for_the_same_subject(node: AlertingNode) -> None:
    await node.put("job", **EVERY_MINUTE)
    await node.rule(when={"kind": "slow", "seconds": 20})
    await node.step(NOW + minutes(1))
    worker = Worker(node)
    task = await worker.claim_one(lease_seconds=3600)
    node.move_to(NOW + minutes(1) + seconds(21))
    (first,) = await opened(node, "job")
    await node.rule(when={"kind": "dead"})
    await worker.fail(task, "it broke", retryable=False)
    (second,) = await opened(node, "job")
    assert first.id != second.id
    assert {one.resolution for one in await node.incidents()} == {None, IncidentResolution.REMOVED}


async def test_an_incident_without_news_for_a_week_ends(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"})
    await fail_task(node)
    await opened(node, "work in queue default")
    node.move_to(node.now + timedelta(days=7))
    await opened(node)
    (incident,) = await node.incidents(IncidentState.RESOLVED)
    assert incident.resolution is IncidentResolution.EXPIRED


async def test_tenants_are_judged_apart(node: AlertingNode) -> None:
    await node.rule(when={"kind": "dead"}, tenant_id=OTHER_TENANT)
    await fail_task(node)
    await opened(node)
    assert await node.store.incident_list(OTHER_TENANT, limit=10) == []


async def test_changes_are_counted_and_streamed(node: AlertingNode) -> None:
    subscription = node.event_stream.subscribe(DEFAULT_TENANT)
    await node.rule(when={"kind": "dead"})
    await fail_task(node)
    await node.evaluate()
    assert node.events_of(IncidentsOpen)[-1].counts == {"dead": 1}
    await node.submit()
    await node.run_task(takes=1)
    await node.evaluate()
    assert node.events_of(IncidentsOpen)[-1].counts == {}
    changes = node.events_of(IncidentsChanged)
    assert [(dict(one.opened), dict(one.resolved), dict(one.messages), one.tasks) for one in changes] == [
        ({"dead": 1}, {}, {"opened": 1}, 1),
        ({}, {"dead": 1}, {"resolved": 1}, 1),
    ]
    streamed = [event.data for event in subscription._queue if event.kind == "incident"]
    assert [(one["change"], one["alert"], one["kind"]) for one in streamed] == [
        ("opened", "rule", "dead"),
        ("resolved", "rule", "dead"),
    ]
    node.event_stream.unsubscribe(subscription)


# Checks


def down_check(name: str, reason: DownReason, *, team: str = "a") -> Check:
    check = make_check(name, state=CheckState.DOWN, state_since=NOW, reason=reason)
    return msgspec.structs.replace(check, spec=msgspec.structs.replace(check.spec, labels={"team": team}))


async def test_a_check_that_is_down_is_missed_or_has_failed(node: AlertingNode) -> None:
    await node.rule("missed", when={"kind": "missed"}, match={"label": "team=a"})
    await node.rule("dead", when={"kind": "dead"})
    late = down_check("late", DownReason.MISSED)
    failed = down_check("failed", DownReason.FAILED)
    for check in (late, failed, down_check("other", DownReason.MISSED, team="b")):
        assert await node.store.check_write(CheckChange(check, None), now=node.now)
    first, second = sorted(await opened(node, "check failed", "check late"), key=lambda one: one.alert)
    assert (first.alert, first.summary) == ("dead", "check failed: the job reported a failure")
    assert (second.alert, second.summary) == ("missed", "check late: no ping arrived in time")
    up = msgspec.structs.replace(late.position, state=CheckState.UP, reason=None)
    assert await node.store.check_advance([CheckChange(msgspec.structs.replace(late, position=up, version=2), 1)], now=node.now)
    await opened(node, "check failed")

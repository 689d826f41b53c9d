"""Verbs of alert rules, signals and incidents."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec

from everbeat.core.alert_facts import AlertSignal, SignalKind
from everbeat.core.alerts import MAX_ALERTS, AlertInput, AlertKind, AlertRule, WhenDead, WhenDeadline, WhenMissed, WhenSlow
from everbeat.core.audit_findings import AuditFinding, FindingKind
from everbeat.core.incidents import Incident, IncidentResolution, IncidentState, NotificationEvent
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.targets import WorkerTarget
from everbeat.core.tasks import Origin
from everbeat.core.ticks import SkipReason
from everbeat.store.base import Store
from everbeat.store.values import AlertEvaluation, AuditLogFilter, IncidentCount, TaskFilter
from tests.factories import NOW, OTHER_TENANT, SteppedNode, make_audit_entry, make_task, minutes, seconds
from tests.services.workers import Worker

NOTIFY = [WorkerTarget(type="tell")]


def make_rule(name: str = "failures", *, tenant_id: UUID = DEFAULT_TENANT, revision: int = 1, **given: Any) -> AlertRule:
    return AlertRule(
        tenant_id=tenant_id,
        name=name,
        given=AlertInput(**{"when": WhenDead(), "notify": NOTIFY, **given}),
        revision=revision,
        created_at=NOW,
        updated_at=NOW,
    )


def make_incident(subject: str = "type:default/work", **more: Any) -> Incident:
    fields: dict[str, Any] = {
        "id": uuid4(),
        "tenant_id": DEFAULT_TENANT,
        "alert": "failures",
        "kind": AlertKind.DEAD,
        "subject_name": subject,
        "schedule_id": None,
        "task_id": UUID(int=5),
        "summary": 'it said "no", ü',
        "details": '{"error": "no"}',
        "state": IncidentState.OPEN,
        "count": 1,
        "occurred_at": NOW,
        "opened_at": NOW,
        "last_seen_at": NOW,
        "pending": NotificationEvent.OPENED,
    }
    return Incident(subject=subject, **{**fields, **more})


async def evaluation(store: Store, tenant_id: UUID = DEFAULT_TENANT, **more: Any) -> AlertEvaluation:
    (tenant,) = [one for one in await store.alert_tenants(after=None, limit=10) if one.tenant_id == tenant_id]
    return AlertEvaluation(tenant_id, tenant.version, **{"positions": tenant.positions, **more})


async def test_alert_write_stores_every_field(store: Store) -> None:
    rule = make_rule(description="ü", remind_seconds=600, group_seconds=0)
    assert await store.alert_write(rule, expected=None, now=NOW)
    assert await store.alert_find(DEFAULT_TENANT, ["failures", "none"]) == [rule]
    assert await store.alert_find(OTHER_TENANT, ["failures"]) == []


async def test_alert_write_changes_only_the_expected_revision(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None, now=NOW)
    changed = make_rule(revision=2, description="changed")
    entry = make_audit_entry(action="alert.put")
    assert not await store.alert_write(changed, expected=7, audit_log=[entry], now=NOW)
    assert not await store.alert_write(changed, expected=None, audit_log=[entry], now=NOW)
    assert await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(), before=None, limit=10) == []
    results = await asyncio.gather(*(store.alert_write(changed, expected=1, now=NOW) for _ in range(4)))
    assert sorted(results) == [False, False, False, True]
    assert await store.alert_find(DEFAULT_TENANT, ["failures"]) == [changed]


async def test_alert_write_refuses_more_rules_than_allowed(store: Store) -> None:
    results = [await store.alert_write(make_rule(f"rule{number:03}"), expected=None) for number in range(MAX_ALERTS + 1)]
    assert results == [True] * MAX_ALERTS + [False]
    assert await store.alert_write(make_rule("first", tenant_id=OTHER_TENANT), expected=None)


async def test_alert_list_returns_the_rules_of_a_tenant_by_name(store: Store) -> None:
    for name in ("c", "a", "b"):
        await store.alert_write(make_rule(name), expected=None)
    await store.alert_write(make_rule("x", tenant_id=OTHER_TENANT), expected=None)
    assert [one.name for one in await store.alert_list(DEFAULT_TENANT, after_name=None, limit=2)] == ["a", "b"]
    assert [one.name for one in await store.alert_list(DEFAULT_TENANT, after_name="b", limit=2)] == ["c"]


async def test_alert_find_returns_nothing_for_no_names(store: Store) -> None:
    assert await store.alert_find(DEFAULT_TENANT, []) == []


async def test_alert_delete_resolves_the_incidents_of_the_rule(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    ours, others = make_incident(), make_incident(alert="others")
    assert await store.alert_apply(await evaluation(store, opened=[ours, others]), now=NOW)
    assert await store.alert_delete(OTHER_TENANT, "failures") == 0
    entry = make_audit_entry(action="alert.delete")
    assert await store.alert_delete(DEFAULT_TENANT, "failures", audit_log=[entry], now=NOW + minutes(1)) == 1
    assert await store.alert_delete(DEFAULT_TENANT, "failures") == 0
    (found,) = await store.incident_find(DEFAULT_TENANT, [ours.id])
    expected = (IncidentState.RESOLVED, IncidentResolution.REMOVED, NOW + minutes(1), None)
    assert (found.state, found.resolution, found.resolved_at, found.pending) == expected
    assert await store.incident_find(DEFAULT_TENANT, [others.id]) == [others]
    assert len(await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(), before=None, limit=10)) == 1


async def test_alert_tenants_returns_tenants_with_rules(store: Store) -> None:
    assert await store.alert_tenants(after=None, limit=10) == []
    await store.alert_write(make_rule(), expected=None)
    await store.alert_write(make_rule(tenant_id=OTHER_TENANT), expected=None)
    found = await store.alert_tenants(after=None, limit=10)
    assert [one.tenant_id for one in found] == sorted([DEFAULT_TENANT, OTHER_TENANT])
    assert [one.tenant_id for one in await store.alert_tenants(after=found[0].tenant_id, limit=10)] == [found[1].tenant_id]
    await store.alert_delete(OTHER_TENANT, "failures")
    await store.alert_write(make_rule(revision=2, enabled=False), expected=1)
    assert await store.alert_tenants(after=None, limit=10) == []


async def test_alert_apply_stores_incidents_and_notifications(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    incident = make_incident(schedule_id=UUID(int=3), task_id=None)
    task = make_task("tell", origin=Origin.ALERT)
    given = await evaluation(store, opened=[incident], tasks=[task], positions='{"a": {}}')
    assert await store.alert_apply(given, now=NOW)
    assert await store.incident_find(DEFAULT_TENANT, [incident.id]) == [incident]
    (found,) = (await store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=10, live=True)).tasks
    assert (found.id, found.origin, found.created_at) == (task.id, Origin.ALERT, NOW)
    assert (await evaluation(store)).positions == '{"a": {}}'


async def test_alert_apply_stores_nothing_if_something_was_stored_since(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    stale = await evaluation(store, opened=[make_incident()], tasks=[make_task(origin=Origin.ALERT)])
    assert await store.alert_apply(await evaluation(store), now=NOW)
    assert not await store.alert_apply(stale, now=NOW)
    assert await store.incident_list(DEFAULT_TENANT, limit=10) == []
    assert (await store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=10, live=True)).tasks == []
    before = await evaluation(store)
    await store.alert_write(make_rule(revision=2), expected=1)
    assert not await store.alert_apply(before, now=NOW)


async def test_alert_apply_of_concurrent_evaluations_stores_one(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    given = [await evaluation(store, opened=[make_incident()], tasks=[make_task(origin=Origin.ALERT)]) for _ in range(4)]
    assert sorted(await asyncio.gather(*(store.alert_apply(one, now=NOW) for one in given))) == [False, False, False, True]
    assert len(await store.incident_list(DEFAULT_TENANT, limit=10)) == 1
    assert len((await store.task_list(DEFAULT_TENANT, TaskFilter(), before=None, limit=10, live=True)).tasks) == 1


async def test_alert_apply_changes_incidents_but_not_an_acknowledgement(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    incident = make_incident()
    await store.alert_apply(await evaluation(store, opened=[incident]), now=NOW)
    assert await store.incident_acknowledge(DEFAULT_TENANT, incident.id, actor="ann", note="ok", now=NOW)
    changed = msgspec.structs.replace(incident, count=3, pending=None, announced_at=NOW, summary="again")
    await store.alert_apply(await evaluation(store, changed=[changed]), now=NOW)
    (found,) = await store.incident_find(DEFAULT_TENANT, [incident.id])
    acknowledged = {"state": IncidentState.ACKNOWLEDGED, "acknowledged_at": NOW, "acknowledged_by": "ann", "note": "ok"}
    assert found == msgspec.structs.replace(changed, **acknowledged)
    over: dict[str, Any] = {"state": IncidentState.RESOLVED, "resolved_at": NOW, "resolution": IncidentResolution.RECOVERED}
    await store.alert_apply(await evaluation(store, changed=[msgspec.structs.replace(changed, **over)]), now=NOW)
    (found,) = await store.incident_find(DEFAULT_TENANT, [incident.id])
    assert (found.state, found.acknowledged_by) == (IncidentState.RESOLVED, "ann")
    assert await store.alert_apply(await evaluation(store, opened=[make_incident()]), now=NOW)


async def test_incident_list_filters_and_pages(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    old, new = make_incident("a", opened_at=NOW - minutes(1)), make_incident("b")
    over = {"state": IncidentState.RESOLVED, "resolved_at": NOW, "resolution": IncidentResolution.RECOVERED, "pending": None}
    ended = make_incident("c", alert="others", opened_at=NOW - minutes(2), **over)
    await store.alert_apply(await evaluation(store, opened=[old, new, ended]), now=NOW)
    assert await store.incident_list(DEFAULT_TENANT, limit=10) == [new, old, ended]
    assert await store.incident_list(DEFAULT_TENANT, states=[IncidentState.RESOLVED], limit=10) == [ended]
    assert await store.incident_list(DEFAULT_TENANT, alert="failures", limit=1) == [new]
    assert await store.incident_list(DEFAULT_TENANT, before=(new.opened_at, new.id), limit=10) == [old, ended]
    assert await store.incident_list(OTHER_TENANT, limit=10) == []


async def test_incident_pending_returns_what_is_not_over(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    over = {"state": IncidentState.RESOLVED, "resolved_at": NOW, "resolution": IncidentResolution.RECOVERED}
    unreported = make_incident("b", **over, pending=NotificationEvent.RESOLVED)
    incidents = [make_incident("a"), unreported, make_incident("c", **over, pending=None)]
    await store.alert_apply(await evaluation(store, opened=incidents), now=NOW)
    assert {one.subject for one in await store.incident_pending(DEFAULT_TENANT, limit=10)} == {"a", "b"}
    assert await store.incident_pending(OTHER_TENANT, limit=10) == []


async def test_incident_find_and_incident_acknowledge_concern_one_tenant(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    incident = make_incident()
    await store.alert_apply(await evaluation(store, opened=[incident]), now=NOW)
    assert await store.incident_find(OTHER_TENANT, [incident.id]) == []
    assert not await store.incident_acknowledge(OTHER_TENANT, incident.id, actor="bob", note=None)
    (found,) = await store.incident_find(DEFAULT_TENANT, [incident.id])
    assert found.acknowledged_by is None


async def test_incident_acknowledge_changes_an_open_incident_once(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    incident = make_incident()
    await store.alert_apply(await evaluation(store, opened=[incident]), now=NOW)
    entry = make_audit_entry(action="incident.acknowledge")
    results = [
        await store.incident_acknowledge(DEFAULT_TENANT, incident.id, actor=actor, note=None, audit_log=[entry], now=NOW)
        for actor in ("ann", "bob")
    ]
    assert results == [True, False]
    (found,) = await store.incident_find(DEFAULT_TENANT, [incident.id])
    assert found.acknowledged_by == "ann"
    assert len(await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(), before=None, limit=10)) == 1


async def test_incident_counts_counts_unresolved_incidents(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    over = {"state": IncidentState.RESOLVED, "resolved_at": NOW, "resolution": IncidentResolution.RECOVERED, "pending": None}
    incidents = [make_incident("a"), make_incident("b"), make_incident("c", kind=AlertKind.LATE), make_incident("d", **over)]
    await store.alert_apply(await evaluation(store, opened=incidents), now=NOW)
    expected = [IncidentCount(AlertKind.DEAD, IncidentState.OPEN, 2), IncidentCount(AlertKind.LATE, IncidentState.OPEN, 1)]
    assert await store.incident_counts(DEFAULT_TENANT) == await store.incident_counts(None) == expected
    assert await store.incident_counts(OTHER_TENANT) == []


async def test_incident_prune_deletes_old_resolved_incidents(store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    over = {"state": IncidentState.RESOLVED, "resolution": IncidentResolution.RECOVERED, "pending": None}
    kept = [make_incident("a", opened_at=NOW - minutes(9)), make_incident("b", **over, resolved_at=NOW - minutes(1))]
    old = make_incident("c", **over, resolved_at=NOW - minutes(3))
    await store.alert_apply(await evaluation(store, opened=[*kept, old]), now=NOW)
    assert await store.incident_prune(resolved_seconds=120, limit=10, now=NOW) == 1
    assert {one.subject for one in await store.incident_list(DEFAULT_TENANT, limit=10)} == {"a", "b"}


# Signals: written by the database with the event itself


async def signals(store: Store, tenant_id: UUID = DEFAULT_TENANT) -> list[AlertSignal]:
    return await store.alert_signals(tenant_id, limit=100)


async def run(node: SteppedNode, *, duration: float, fails: bool = False, **more: Any) -> UUID:
    """Submit a task, and let a worker end it after some seconds."""
    task, *_ = await node.tasks.submit(DEFAULT_TENANT, TaskInput(type="work", **more), now=node.now)
    worker = Worker(node)
    claimed = await worker.claim_one()
    node.move_to(node.now + seconds(duration))
    await (worker.fail(claimed, "it broke", retryable=False) if fails else worker.complete(claimed))
    return task.id


async def test_alert_signals_are_written_for_dead_and_slow_tasks(store: Store) -> None:
    node = SteppedNode(store)
    await store.alert_write(make_rule(), expected=None)
    await run(node, duration=5)
    assert await signals(store) == []
    id_ = await run(node, duration=2, fails=True, labels={"team": "a"})
    (found,) = await signals(store)
    assert (found.kind, found.task_id, found.queue, found.type) == (SignalKind.FAILED, id_, "default", "work")
    assert (found.reason, found.labels, found.at, found.seconds) == ("dead", {"team": "a"}, node.now, 2.0)
    await store.alert_write(make_rule("slow", when=WhenSlow(seconds=60)), expected=None)
    await store.alert_write(make_rule("deadline", when=WhenDeadline(by="04:00")), expected=None)
    await run(node, duration=0.5)
    await run(node, duration=1)
    assert [one.kind for one in await signals(store)] == [SignalKind.FAILED, SignalKind.SLOW]
    assert await signals(store, OTHER_TENANT) == []


async def test_alert_signals_are_not_written_without_a_rule_that_needs_them(store: Store) -> None:
    node = SteppedNode(store)
    await run(node, duration=5, fails=True)
    await store.alert_write(make_rule(tenant_id=OTHER_TENANT), expected=None)
    await store.alert_write(make_rule(enabled=False), expected=None)
    await store.alert_write(make_rule("other", when=WhenDeadline(by="04:00")), expected=None)
    await run(node, duration=5, fails=True)
    assert await signals(store) == []


async def test_alert_signals_are_not_written_for_notifications(store: Store) -> None:
    node = SteppedNode(store)
    await store.alert_write(make_rule(), expected=None)
    task = make_task("tell", origin=Origin.ALERT)
    await store.alert_apply(await evaluation(store, tasks=[task]), now=NOW)
    worker = Worker(node)
    await worker.fail(await worker.claim_one(), "no", retryable=False)
    assert await signals(store) == []


async def test_alert_signals_are_written_for_skipped_ticks(store: Store) -> None:
    node = SteppedNode(store)
    await store.alert_write(make_rule(when=WhenMissed()), expected=None)
    await node.renew()
    schedule = await node.put(every_seconds=60, anchor="2026-03-02T12:00:00Z")
    node.move_to(NOW + minutes(10))
    await node.renew()
    await node.tick()
    (found,) = await signals(store)
    assert (found.kind, found.schedule_id, found.skip_reason, found.count) == (
        *(SignalKind.SKIPPED, schedule.id, SkipReason.MISFIRE),
        9,
    )
    assert found.scheduled_for == NOW + minutes(9)


async def test_alert_signals_are_written_for_findings_of_the_auditor(store: Store) -> None:
    await store.alert_write(make_rule("missed", when=WhenMissed()), expected=None)
    for kind in (FindingKind.MISSING, FindingKind.LATE, FindingKind.OVERDUE):
        finding = AuditFinding(
            id=uuid4(),
            tenant_id=DEFAULT_TENANT,
            schedule_id=UUID(int=3),
            kind=kind,
            scheduled_for=NOW,
            found_at=NOW + minutes(1),
            details='{"name": "job", "lag_seconds": 60.5}',
        )
        await store.finding_record([finding])
    (found,) = await signals(store)
    assert (found.kind, found.schedule_id, found.schedule_name) == (SignalKind.MISSED, UUID(int=3), "job")
    assert (found.scheduled_for, found.at, found.seconds) == (NOW, NOW + minutes(1), 60.5)


async def test_alert_apply_deletes_the_signals_that_were_judged(store: Store) -> None:
    node = SteppedNode(store)
    await store.alert_write(make_rule(), expected=None)
    for _ in range(3):
        await run(node, duration=1, fails=True)
    first, second, third = await signals(store)
    assert await store.alert_apply(await evaluation(store, signal_ids=[first.id, third.id]), now=NOW)
    assert await signals(store) == [second]


async def test_alert_signal_prune_deletes_those_of_tenants_without_rules(store: Store) -> None:
    node = SteppedNode(store)
    await store.alert_write(make_rule(), expected=None)
    await run(node, duration=1, fails=True)
    later = node.now + timedelta(days=8)
    assert await store.alert_signal_prune(old_seconds=86_400, limit=10, now=later) == 0
    await store.alert_delete(DEFAULT_TENANT, "failures")
    assert await store.alert_signal_prune(old_seconds=86_400, limit=10, now=node.now) == 0
    assert await store.alert_signal_prune(old_seconds=86_400, limit=10, now=later) == 1

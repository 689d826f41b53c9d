"""Evaluates alert rules: judges them, and opens, updates and ends incidents with their notifications.

The loop runs on the owner of partition 0, one tenant after the other. A pass over a tenant reads the facts, decides, and stores
everything in one transaction: incidents, positions, the deletion of the signals that were judged, and the tasks of the
notifications. The transaction begins with a compare-and-set on the version of the tenant's rules, so that an evaluation by a
former owner, or one of rules that have changed since, stores nothing. So a crash loses neither a signal nor a notification, and
an incident is reported once to each recipient.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.core.alert_facts import AlertSignal
from everbeat.core.alert_messages import notification_tasks
from everbeat.core.alerts import MAX_ALERTS, AlertKind, AlertRule
from everbeat.core.definitions import rfc3339
from everbeat.core.errors import EverbeatError
from everbeat.core.incidents import (
    Incident,
    IncidentResolution,
    Notification,
    plan_incidents,
    plan_notifications,
    resolved,
)
from everbeat.core.tasks import NewTask
from everbeat.core.timeline import TimelineCache
from everbeat.services.alert_deadlines import RulePosition
from everbeat.services.alert_facts import TenantFacts
from everbeat.services.alert_judge import AlertJudge, RuleTask
from everbeat.services.event_stream import EventKind, EventStream
from everbeat.services.events import Emit, IncidentsChanged, IncidentsOpen, LoopFailed, ignore
from everbeat.services.maintenance.singleton import SingletonLoop
from everbeat.services.ownership import Ownership
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store
from everbeat.store.task_changes import submitted_changes
from everbeat.store.values import AlertEvaluation, AlertTenant

MAX_SIGNALS = 1000
MAX_INCIDENTS = 5000

_TENANTS_PER_ITERATION = 50
# An incident that merely lasts is written this often, and not with each pass.
_SEEN_EVERY = timedelta(seconds=60)

_encode = msgspec.json.Encoder().encode
_decode_positions = msgspec.json.Decoder(dict[str, RulePosition]).decode


class _Outcome(NamedTuple):
    """What a pass over a rule found. `changed` are incidents that are stored already."""

    position: RulePosition
    opened: list[Incident]
    changed: list[Incident]
    notifications: list[Notification]


class AlertEvaluator(SingletonLoop):
    name = "alerts"
    deadline_seconds = 60.0

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        timelines: TimelineCache,
        publisher: ChangePublisher,
        *,
        public_url: str | None = None,
        event_stream: EventStream | None = None,
        emit: Emit = ignore,
        interval_seconds: float = 5.0,
    ) -> None:
        super().__init__(ownership, interval_seconds)
        self._store = store
        self._timelines = timelines
        self._publisher = publisher
        self._public_url = public_url
        self._event_stream = event_stream or EventStream()
        self._emit = emit
        self._after: UUID | None = None

    async def run_once(self, now: datetime | None = None) -> bool:
        if not self.is_owner():
            self._after = None
            self._emit(IncidentsOpen({}))
            return False
        tenants = await self._store.alert_tenants(after=self._after, limit=_TENANTS_PER_ITERATION)
        has_more = False
        for tenant in tenants:
            has_more |= await self._evaluate(tenant, now)
            await asyncio.sleep(0)
        if len(tenants) == _TENANTS_PER_ITERATION:
            self._after = tenants[-1].tenant_id
            return True
        self._after = None
        await self._report_open()
        return has_more

    async def _report_open(self) -> None:
        counts = Counter[str]()
        for one in await self._store.incident_counts(None):
            counts[one.kind.value] += one.count
        self._emit(IncidentsOpen(counts))

    async def _evaluate(self, tenant: AlertTenant, now: datetime | None) -> bool:
        """Evaluate the rules of a tenant. Returns whether there is more to judge immediately."""
        store, tenant_id = self._store, tenant.tenant_id
        moment = await store.clock(now=now)
        rules = await store.alert_list(tenant_id, after_name=None, limit=MAX_ALERTS)
        signals = await store.alert_signals(tenant_id, limit=MAX_SIGNALS)
        pending = await store.incident_pending(tenant_id, limit=MAX_INCIDENTS)
        facts = TenantFacts(store, self._timelines, tenant_id, moment, signals, now)
        stale = await self._without_subject(facts, rules, pending, moment)
        by_rule: dict[str, list[Incident]] = {}
        for incident in pending:
            if incident.id not in stale:
                by_rule.setdefault(incident.alert, []).append(incident)
        positions = _decode_positions(tenant.positions)
        outcomes: dict[str, _Outcome] = {}
        for rule in rules:
            if rule.given.enabled:
                position = positions.get(rule.name, RulePosition())
                outcomes[rule.name] = await self._evaluate_rule(rule, by_rule.get(rule.name, []), position, facts)
        return await self._store_outcomes(tenant, rules, outcomes, list(stale.values()), signals, pending, moment, now)

    async def _without_subject(
        self, facts: TenantFacts, rules: Sequence[AlertRule], pending: Sequence[Incident], moment: datetime
    ) -> dict[UUID, Incident]:
        """Return the incidents that are over because their rule or schedule is gone, as resolved and without a message."""
        kinds = {rule.name: rule.kind for rule in rules if rule.given.enabled}
        schedules = await facts.schedules(one.schedule_id for one in pending)
        return {
            one.id: resolved(one, IncidentResolution.REMOVED, moment, None)
            for one in pending
            if one.is_unresolved
            and (kinds.get(one.alert) is not one.kind or (one.schedule_id is not None and one.schedule_id not in schedules))
        }

    async def _evaluate_rule(
        self, rule: AlertRule, incidents: list[Incident], position: RulePosition, facts: TenantFacts
    ) -> _Outcome:
        moment = facts.moment
        try:
            unresolved = [one for one in incidents if one.is_unresolved]
            judgement, position = await AlertJudge(facts).judge(RuleTask(rule, unresolved, position))
            plan = plan_incidents(rule, judgement, unresolved, moment, _ids())
        except EverbeatError:
            raise
        except Exception as error:  # one rule that cannot be judged must not stop the others
            self._emit(LoopFailed(f"{self.name}: {rule.name}", error, False))
            return _Outcome(position, [], [], [])
        changed = {one.id: one for one in plan.changed}
        current = [changed.get(one.id, one) for one in incidents] + plan.opened
        notified = plan_notifications(rule, current, position.sent_at, moment)
        latest = changed | {one.id: one for one in notified.changed}
        opened = [latest.pop(one.id, one) for one in plan.opened]
        position = msgspec.structs.replace(position, sent_at=notified.sent_at)
        return _Outcome(position, opened, list(latest.values()), notified.notifications)

    async def _store_outcomes(
        self,
        tenant: AlertTenant,
        rules: Sequence[AlertRule],
        outcomes: Mapping[str, _Outcome],
        stale: list[Incident],
        signals: Sequence[AlertSignal],
        pending: Sequence[Incident],
        moment: datetime,
        now: datetime | None,
    ) -> bool:
        stored = {one.id: one for one in pending}
        changed = stale + [one for outcome in outcomes.values() for one in outcome.changed]
        changed = [one for one in changed if _is_worth_writing(stored[one.id], one)]
        opened = [one for outcome in outcomes.values() for one in outcome.opened]
        tasks = self._tasks(rules, outcomes, moment)
        positions = _encode({name: outcome.position for name, outcome in outcomes.items()}).decode()
        if not (opened or changed or tasks or signals or _decode_positions(tenant.positions) != _decode_positions(positions)):
            return False
        ids = [one.id for one in signals]
        evaluation = AlertEvaluation(tenant.tenant_id, tenant.version, positions, ids, opened, changed, tasks)
        if not await self._store.alert_apply(evaluation, now=now):
            return True
        self._publisher.publish(submitted_changes(tasks, moment), now=moment)
        self._publish(opened, changed, stored, outcomes, tasks)
        in_progress = any(outcome.position.deadline_until is not None for outcome in outcomes.values())
        return in_progress or len(signals) == MAX_SIGNALS

    def _tasks(self, rules: Sequence[AlertRule], outcomes: Mapping[str, _Outcome], moment: datetime) -> list[NewTask]:
        by_name, ids = {rule.name: rule for rule in rules}, _ids()
        return [
            task
            for name, outcome in outcomes.items()
            for notification in outcome.notifications
            for task in notification_tasks(by_name[name], notification, moment, ids, self._public_url)
        ]

    def _publish(
        self,
        opened: Sequence[Incident],
        changed: Sequence[Incident],
        stored: Mapping[UUID, Incident],
        outcomes: Mapping[str, _Outcome],
        tasks: Sequence[NewTask],
    ) -> None:
        ended = [one for one in changed if not one.is_unresolved and stored[one.id].is_unresolved]
        sent = Counter(notification.event.value for outcome in outcomes.values() for notification in outcome.notifications)
        if opened or ended or tasks:
            self._emit(IncidentsChanged(_kinds(opened), _kinds(ended), sent, len(tasks)))
        for change, incidents in (("opened", opened), ("resolved", ended)):
            for one in incidents:
                data = {"change": change, "id": str(one.id), "alert": one.alert, "kind": one.kind.value}
                data |= {"subject": one.subject_name, "summary": one.summary, "opened_at": rfc3339(one.opened_at)}
                self._event_stream.publish(EventKind.INCIDENT, one.tenant_id, data)


def _kinds(incidents: Sequence[Incident]) -> Counter[AlertKind]:
    return Counter(one.kind for one in incidents)


def _is_worth_writing(stored: Incident, incident: Incident) -> bool:
    """Whether more has changed than the time at which a lasting incident was last seen, and its text."""
    if incident.last_seen_at - stored.last_seen_at >= _SEEN_EVERY:
        return True
    same = msgspec.structs.replace(
        incident, last_seen_at=stored.last_seen_at, summary=stored.summary, details=stored.details, task_id=stored.task_id
    )
    return same != stored


def _ids() -> Iterator[UUID]:
    while True:
        yield uuid_utils.compat.uuid7()

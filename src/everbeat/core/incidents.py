"""Incidents: what an alert rule found, from its opening to its end, and which notifications are due. Pure.

There is at most one unresolved incident for each rule and subject. `plan_incidents` compares what was found with the incidents
that are stored, and `plan_notifications` decides which messages are due. The evaluator writes the result of both, with the
tasks of the messages, in one transaction (services/alert_evaluator.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.alerts import AlertKind, AlertRule
from everbeat.core.quiet_times import is_quiet

# An incident without a new occurrence for this long is resolved. It ends those about subjects that no longer run.
EXPIRES_AFTER = timedelta(days=7)


class IncidentState(StrEnum):
    """open: nobody has acknowledged it. acknowledged: somebody knows of it, so there are no reminders. resolved: it is over."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class IncidentResolution(StrEnum):
    """Why an incident is over. `expired`: nothing has happened for a week. `removed`: its rule was removed or changed."""

    RECOVERED = "recovered"
    EXPIRED = "expired"
    REMOVED = "removed"


class NotificationEvent(StrEnum):
    """What a notification reports."""

    OPENED = "opened"
    REMINDER = "reminder"
    RESOLVED = "resolved"


class Subject(NamedTuple):
    """What an incident is about. `key`: the same for all findings about it. `name`: how it is shown."""

    key: str
    name: str
    schedule_id: UUID | None = None
    task_id: UUID | None = None


class Finding(NamedTuple):
    """A rule is violated by a subject. `since`: when it happened last, or began. `count`: how many occurrences this is."""

    subject: Subject
    summary: str
    since: datetime
    count: int = 1  # type: ignore[assignment]  # it hides tuple.count, which is not used
    details: Mapping[str, Any] = {}


class Judgement(NamedTuple):
    """What a pass found for one rule. `recovered`: the keys of subjects that are in order; `all_others`: every other one is."""

    findings: Sequence[Finding] = ()
    recovered: Collection[str] = ()
    all_others: bool = False


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """`pending`: the message that is still to be sent. `count`: the occurrences since it opened."""

    id: UUID
    tenant_id: UUID
    alert: str
    kind: AlertKind
    subject: str
    subject_name: str
    schedule_id: UUID | None
    task_id: UUID | None
    summary: str
    details: str
    state: IncidentState
    count: int
    occurred_at: datetime
    opened_at: datetime
    last_seen_at: datetime
    resolved_at: datetime | None = None
    resolution: IncidentResolution | None = None
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    note: str | None = None
    pending: NotificationEvent | None = None
    announced_at: datetime | None = None
    reminded_at: datetime | None = None
    reminders: int = 0

    @property
    def is_unresolved(self) -> bool:
        return self.state is not IncidentState.RESOLVED


class IncidentPlan(NamedTuple):
    opened: list[Incident]
    changed: list[Incident]


class Notification(NamedTuple):
    """A message about incidents of one rule. There is one for each recipient."""

    event: NotificationEvent
    incidents: list[Incident]


class NotificationPlan(NamedTuple):
    """The due messages, and their incidents as they are once the messages are written. `sent_at`: of the last opening."""

    notifications: list[Notification]
    changed: list[Incident]
    sent_at: datetime | None


_encode = msgspec.json.Encoder().encode


def plan_incidents(
    rule: AlertRule, judgement: Judgement, stored: Iterable[Incident], now: datetime, ids: Iterable[UUID]
) -> IncidentPlan:
    """Compare what was found for a rule with its unresolved incidents. `ids`: of new incidents."""
    unresolved = {one.subject: one for one in stored if one.is_unresolved}
    new_ids = iter(ids)
    opened: dict[str, Incident] = {}
    changed: dict[str, Incident] = {}
    for finding in judgement.findings:
        key = finding.subject.key
        known = changed.get(key) or unresolved.get(key)
        if known is not None:
            changed[key] = _seen_again(known, finding, now)
        elif key in opened:
            opened[key] = _seen_again(opened[key], finding, now)
        else:
            opened[key] = _new_incident(rule, finding, now, next(new_ids))
    for key, incident in unresolved.items():
        if key in changed:
            continue
        if judgement.all_others or key in judgement.recovered:
            changed[key] = resolved(incident, IncidentResolution.RECOVERED, now, rule)
        elif now - incident.last_seen_at >= EXPIRES_AFTER:
            changed[key] = resolved(incident, IncidentResolution.EXPIRED, now, rule)
    return IncidentPlan(list(opened.values()), list(changed.values()))


def _new_incident(rule: AlertRule, finding: Finding, now: datetime, id_: UUID) -> Incident:
    subject = finding.subject
    return Incident(
        id=id_,
        tenant_id=rule.tenant_id,
        alert=rule.name,
        kind=rule.kind,
        subject=subject.key,
        subject_name=subject.name,
        schedule_id=subject.schedule_id,
        task_id=subject.task_id,
        summary=finding.summary,
        details=_encode(finding.details).decode(),
        state=IncidentState.OPEN,
        count=finding.count,
        occurred_at=finding.since,
        opened_at=now,
        last_seen_at=now,
        pending=NotificationEvent.OPENED,
    )


def _seen_again(incident: Incident, finding: Finding, now: datetime) -> Incident:
    """Return the incident with the newest occurrence. A condition that merely lasts is not another occurrence."""
    is_newer = finding.since > incident.occurred_at
    return msgspec.structs.replace(
        incident,
        summary=finding.summary,
        details=_encode(finding.details).decode(),
        task_id=finding.subject.task_id or incident.task_id,
        count=incident.count + (finding.count if is_newer else 0),
        occurred_at=max(incident.occurred_at, finding.since),
        last_seen_at=now,
    )


def resolved(incident: Incident, resolution: IncidentResolution, now: datetime, rule: AlertRule | None) -> Incident:
    """Return the incident as resolved. Its end is reported if its opening was, and if the rule wants it. None: no rule."""
    is_reported = incident.announced_at is not None and rule is not None and rule.given.notify_resolved
    return msgspec.structs.replace(
        incident,
        state=IncidentState.RESOLVED,
        resolved_at=now,
        resolution=resolution,
        pending=NotificationEvent.RESOLVED if is_reported else None,
    )


def plan_notifications(
    rule: AlertRule, incidents: Sequence[Incident], sent_at: datetime | None, now: datetime
) -> NotificationPlan:
    """Decide which messages are due. `sent_at`: when the rule last reported the opening of incidents.

    The first incident of a rule is reported at once. Those that open within `group_seconds` after it are reported together.
    """
    if is_quiet(rule.given.quiet, now):
        return NotificationPlan([], [], sent_at)
    notifications: list[Notification] = []
    changed: list[Incident] = []
    opened = [one for one in incidents if one.pending is NotificationEvent.OPENED]
    if opened and (sent_at is None or now - sent_at >= timedelta(seconds=rule.given.group_seconds)):
        sent_at = now
        announced = [msgspec.structs.replace(one, pending=None, announced_at=now) for one in opened]
        notifications.append(Notification(NotificationEvent.OPENED, announced))
        changed += announced
    reminded = [
        msgspec.structs.replace(one, reminded_at=now, reminders=one.reminders + 1)
        for one in incidents
        if _is_reminder_due(one, rule.given.remind_seconds, now)
    ]
    if reminded:
        notifications.append(Notification(NotificationEvent.REMINDER, reminded))
        changed += reminded
    ended = [msgspec.structs.replace(one, pending=None) for one in incidents if one.pending is NotificationEvent.RESOLVED]
    if ended:
        notifications.append(Notification(NotificationEvent.RESOLVED, ended))
        changed += ended
    return NotificationPlan(notifications, changed, sent_at)


def _is_reminder_due(incident: Incident, remind_seconds: float | None, now: datetime) -> bool:
    if remind_seconds is None or incident.state is not IncidentState.OPEN or incident.announced_at is None:
        return False
    return now - (incident.reminded_at or incident.announced_at) >= timedelta(seconds=remind_seconds)

"""Notifications of alerts: the payload of the task that is sent to each recipient. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.alerts import AlertRule
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.core.incident_links import page_link, why_link
from everbeat.core.incidents import Incident, Notification, NotificationEvent
from everbeat.core.message_targets import EmailTarget
from everbeat.core.partitioning import partition_of
from everbeat.core.targets import Target, WorkerTarget, destination_of, queue_of
from everbeat.core.tasks import NewTask, Origin

MAX_LISTED = 20
TASK_TYPE = "alert"
MAX_ATTEMPTS = 15
TIMEOUT_SECONDS = 120.0
PRIORITY = 10

_MAX_TITLE_CHARACTERS = 150
_WORDS = {
    NotificationEvent.OPENED: "Alert",
    NotificationEvent.REMINDER: "Still open",
    NotificationEvent.RESOLVED: "Resolved",
}

_encode = msgspec.json.Encoder().encode


def notification_tasks(
    rule: AlertRule, notification: Notification, now: datetime, ids: Iterator[UUID], public_url: str | None
) -> list[NewTask]:
    """Return one task for each recipient. An e-mail to several addresses is a task for each of them."""
    payload = _encode(notification_payload(rule, notification, now, public_url))
    labels = _encode(
        {"alert": rule.name, "event": notification.event.value, "incident": str(notification.incidents[0].id)}
    ).decode()
    return [_task(rule, target, payload, labels, next(ids)) for target in recipients(rule.given.notify)]


def recipients(targets: Iterable[Target]) -> Iterator[Target]:
    for target in targets:
        if isinstance(target, EmailTarget):
            for address in dict.fromkeys(target.to):
                yield msgspec.structs.replace(target, to=[address])
        else:
            yield target


def _task(rule: AlertRule, target: Target, payload: bytes, labels: str, id_: UUID) -> NewTask:
    return NewTask(
        id=id_,
        tenant_id=rule.tenant_id,
        partition=partition_of(id_),
        queue=queue_of(target),
        type=target.type if isinstance(target, WorkerTarget) else TASK_TYPE,
        target=_encode(target).decode(),
        payload=payload,
        origin=Origin.ALERT,
        priority=PRIORITY,
        max_attempts=MAX_ATTEMPTS,
        retry="{}",
        timeout_seconds=TIMEOUT_SECONDS,
        labels=labels,
        fair_key=destination_of(target),
    )


def notification_payload(rule: AlertRule, notification: Notification, now: datetime, public_url: str | None) -> dict[str, Any]:
    """Return what a receiver gets. With a public URL, links are absolute. The first incidents are listed."""
    incidents = notification.incidents
    listed = [_incident(one, public_url) for one in incidents[:MAX_LISTED]]
    return {
        "event": f"incident.{notification.event.value}",
        "alert": rule.name,
        "kind": rule.kind.value,
        "title": _title(rule, notification),
        "text": _text(rule, listed, len(incidents)),
        "count": len(incidents),
        "incidents": listed,
        "sent_at": rfc3339(now),
    }


def _incident(incident: Incident, public_url: str | None) -> dict[str, Any]:
    why = why_link(incident)
    return {
        "id": str(incident.id),
        "subject": incident.subject_name,
        "summary": incident.summary,
        "state": incident.state.value,
        "count": incident.count,
        "occurred_at": rfc3339(incident.occurred_at),
        "opened_at": rfc3339(incident.opened_at),
        "resolved_at": optional_rfc3339(incident.resolved_at),
        "details": msgspec.json.decode(incident.details),
        "url": None if public_url is None else public_url + page_link(incident.id),
        "why": None if why is None else f"{public_url or ''}{why}",
    }


def _title(rule: AlertRule, notification: Notification) -> str:
    word, incidents = _WORDS[notification.event], notification.incidents
    what = incidents[0].summary if len(incidents) == 1 else f"{len(incidents)} incidents of {rule.name}"
    text = f"{word}: {what}"
    return text if len(text) <= _MAX_TITLE_CHARACTERS else f"{text[: _MAX_TITLE_CHARACTERS - 1]}…"


def _text(rule: AlertRule, listed: Sequence[dict[str, Any]], total: int) -> str:
    lines = [f"Alert {rule.name} ({rule.kind.value})"]
    if rule.given.description:
        lines.append(rule.given.description)
    for one in listed:
        lines += ["", one["summary"], f"Since {one['opened_at']}"]
        if one["resolved_at"] is not None:
            lines.append(f"Resolved at {one['resolved_at']}")
        lines += [f"Incident: {one['url']}"] if one["url"] else []
        lines += [f"Why: {one['why']}"] if one["why"] else []
    if total > len(listed):
        lines += ["", f"and {total - len(listed)} more"]
    return "\n".join(lines)

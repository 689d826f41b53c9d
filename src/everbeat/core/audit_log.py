"""The audit log: the closed list of actions, and the construction of entries. An entry never contains a payload."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry, Caller


class AuditLogAction(StrEnum):
    """What was done. A closed list: adding an action changes the API contract."""

    SCHEDULE_CREATE = "schedule.create"
    SCHEDULE_UPDATE = "schedule.update"
    SCHEDULE_DELETE = "schedule.delete"
    SCHEDULE_PAUSE = "schedule.pause"
    SCHEDULE_RESUME = "schedule.resume"
    SCHEDULE_TRIGGER = "schedule.trigger"
    SCHEDULE_BACKFILL = "schedule.backfill"
    CALENDAR_PUT = "calendar.put"
    CALENDAR_DELETE = "calendar.delete"
    ENDPOINT_PUT = "endpoint.put"
    ENDPOINT_ROTATE = "endpoint.rotate"
    ENDPOINT_DELETE = "endpoint.delete"
    ALERT_PUT = "alert.put"
    ALERT_DELETE = "alert.delete"
    INCIDENT_ACKNOWLEDGE = "incident.acknowledge"
    CHECK_PUT = "check.put"
    CHECK_ROTATE = "check.rotate"
    CHECK_PAUSE = "check.pause"
    CHECK_RESUME = "check.resume"
    CHECK_DELETE = "check.delete"
    TASK_CANCEL = "task.cancel"
    TASK_RETRY = "task.retry"
    TASK_RESCHEDULE = "task.reschedule"
    DEAD_LETTER_REPLAY = "dead_letter.replay"
    DEAD_LETTER_PURGE = "dead_letter.purge"
    PAUSE_BEGIN = "pause.begin"
    PAUSE_END = "pause.end"
    BULK_BEGIN = "bulk.begin"
    BULK_CANCEL = "bulk.cancel"
    TENANT_CREATE = "tenant.create"
    TENANT_UPDATE = "tenant.update"
    KEY_CREATE = "key.create"
    KEY_REVOKE = "key.revoke"
    SESSION_CREATE = "session.create"
    SESSION_END = "session.end"
    DATABASE_RESTORED = "database.restored"


def audit_log_entry(
    id_: UUID, by: Caller, action: AuditLogAction, subject: str, detail: Mapping[str, Any], *, tenant_id: UUID | None = None
) -> AuditLogEntry:
    """Return an entry for the tenant whose data changed: `tenant_id` if it is given, otherwise the caller's tenant."""
    return AuditLogEntry(
        id=id_,
        tenant_id=by.tenant_id if tenant_id is None else tenant_id,
        actor=by.actor,
        key_id=by.key_id,
        action=action.value,
        subject=subject,
        detail=msgspec.json.encode(detail).decode(),
        request_id=by.request_id,
        address=by.address,
    )

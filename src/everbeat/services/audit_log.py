"""Creates entries of the audit log. They are written in the transaction of the change that they record."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from everbeat.core.access import LOCAL_CALLER, AuditLogEntry, Caller
from everbeat.core.audit_log import AuditLogAction, audit_log_entry
from everbeat.services.ids import new_ids

AuditLogEntries = tuple[AuditLogEntry, ...]


def new_audit_log_entry(
    by: Caller | None, action: AuditLogAction, subject: object, *, tenant_id: UUID | None = None, **detail: Any
) -> AuditLogEntry:
    """Return an entry about `subject`, such as the id of a schedule. `tenant_id`: its tenant, if not that of the caller."""
    return audit_log_entry(new_ids(1)[0], by or LOCAL_CALLER, action, str(subject), detail, tenant_id=tenant_id)


def new_audit_log_entries(
    by: Caller | None, action: AuditLogAction, subject: object, *, tenant_id: UUID | None = None, **detail: Any
) -> AuditLogEntries:
    """Return one entry, or none without a caller: what the engine does by itself is not in the audit log."""
    return () if by is None else (new_audit_log_entry(by, action, subject, tenant_id=tenant_id, **detail),)

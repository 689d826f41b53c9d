"""Lines of the audit trail: who did what to what, put together where the change is decided and written with it."""

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
    """A line about `subject`, such as a schedule's or a key's id. `tenant_id`: whose it is, if not the caller's own."""
    return audit_log_entry(new_ids(1)[0], by or LOCAL_CALLER, action, str(subject), detail, tenant_id=tenant_id)


def new_audit_log_entries(
    by: Caller | None, action: AuditLogAction, subject: object, *, tenant_id: UUID | None = None, **detail: Any
) -> AuditLogEntries:
    """One line, or none where nobody is behind it: what the engine does by itself is in its logs and ledgers."""
    return () if by is None else (new_audit_log_entry(by, action, subject, tenant_id=tenant_id, **detail),)

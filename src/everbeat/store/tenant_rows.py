"""Converts tenants and audit log entries to table rows and back, for both dialects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import QuotaExceeded
from everbeat.core.tenants import Tenant, TenantQuotas
from everbeat.store.rows import EARLIEST, LAST_ID, LATEST
from everbeat.store.values import AuditLogFilter, TenantWrite

_QUOTAS = TenantQuotas.__struct_fields__


def tenant_from_row(row: Mapping[str, Any]) -> Tenant:
    own = {name: value for name, value in row.items() if name not in _QUOTAS}
    return Tenant(**own, quotas=TenantQuotas(**{name: row[name] for name in _QUOTAS}))


def tenant_to_row(write: TenantWrite) -> dict[str, Any]:
    own = msgspec.structs.asdict(write.tenant)
    quotas = msgspec.structs.asdict(own.pop("quotas"))
    return {**own, **quotas, "expected": write.expected}


def audit_log_entry_from_row(row: Mapping[str, Any]) -> AuditLogEntry:
    return AuditLogEntry(**row)


def audit_log_window(filter_: AuditLogFilter, before: tuple[datetime, UUID] | None) -> dict[str, Any]:
    before_at, before_id = before or (LATEST, LAST_ID)
    from_at, to_at = filter_.from_at or EARLIEST, filter_.to_at or LATEST
    return {"before_at": before_at, "before_id": before_id, "from_at": from_at, "to_at": to_at, "action": filter_.action}


class ScheduleQuota(NamedTuple):
    """The number of schedules that a tenant has, the number to be added, and the limit."""

    used: int
    new: int
    max_schedules: int | None

    def check(self) -> None:
        if self.max_schedules is not None and self.used + self.new > self.max_schedules:
            excess = "" if self.new == 1 else f", {self.new} more do not fit"
            raise QuotaExceeded(f"max_schedules: {self.used} of {self.max_schedules} in use{excess}")


_AUDIT_LOG_FIELDS = {
    "ids": "id",
    "tenant_ids": "tenant_id",
    "actors": "actor",
    "key_ids": "key_id",
    "actions": "action",
    "subjects": "subject",
    "details": "detail",
    "request_ids": "request_id",
    "addresses": "address",
}


def audit_log_columns(audit_log: Sequence[AuditLogEntry]) -> dict[str, list[Any]]:
    return {column: [getattr(entry, field) for entry in audit_log] for column, field in _AUDIT_LOG_FIELDS.items()}

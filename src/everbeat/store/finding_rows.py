"""Converts findings of the auditor to table rows and back."""

from __future__ import annotations

from typing import Any

import msgspec

from everbeat.core.audit_findings import AuditFinding, FindingKind, Resolution
from everbeat.store.rows import EARLIEST, FIRST_ID, LAST_ID, LATEST, Row
from everbeat.store.values import FindingFilter

_NO_SCHEDULE = FIRST_ID


def finding_to_row(finding: AuditFinding) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(finding),
        "schedule_id": finding.schedule_id or _NO_SCHEDULE,
        "kind": finding.kind.value,
        "resolution": None if finding.resolution is None else finding.resolution.value,
    }


def finding_from_row(row: Row) -> AuditFinding:
    values = dict(row)
    return AuditFinding(
        **{
            **values,
            "schedule_id": None if values["schedule_id"] == _NO_SCHEDULE else values["schedule_id"],
            "kind": FindingKind(values["kind"]),
            "resolution": None if values["resolution"] is None else Resolution(values["resolution"]),
        }
    )


def finding_filter_values(filter_: FindingFilter) -> dict[str, Any]:
    return {
        "is_resolved": filter_.is_resolved,
        "before": filter_.before or LAST_ID,
        "kind": None if filter_.kind is None else filter_.kind.value,
        "schedule_id": filter_.schedule_id,
        "from_at": filter_.from_at or EARLIEST,
        "to_at": filter_.to_at or LATEST,
    }

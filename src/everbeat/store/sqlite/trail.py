"""Writes lines of the audit trail inside the transaction of the change they tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.store.sqlite.connections import Session


def write_trail(session: Session, sql: Mapping[str, str], trail: Sequence[AuditLogEntry], moment: datetime) -> None:
    if trail:
        session.change_many(sql["audit_insert"], [{**msgspec.structs.asdict(entry), "at": moment} for entry in trail])

"""Writes audit log entries in the transaction of the change that they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.store.sqlite.blocks import Block
from everbeat.store.sqlite.connections import SqliteSession


def write_audit_log(
    session: SqliteSession, blocks: Mapping[str, Block], audit_log: Sequence[AuditLogEntry], moment: datetime
) -> None:
    if audit_log:
        session.change_many(
            blocks["audit_log_insert"], [{**msgspec.structs.asdict(entry), "at": moment} for entry in audit_log]
        )

"""Archives of months: the columns of each table as they are written to files, the names of the files, and the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

# Raised when a column is added, renamed or changes its type. Readers find it in the manifest and in each file.
ARCHIVE_SCHEMA_VERSION = 1
ARCHIVE_FORMAT = "everbeat-archive"


class ColumnKind(StrEnum):
    """How a column is stored in a file. Ids are text, because not all readers of Parquet know UUIDs."""

    ID = "id"
    TIME = "time"
    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"


_ID, _TIME, _TEXT, _INTEGER, _FLOAT = ColumnKind

DATASETS: Mapping[str, str] = {"ticks": "ledger", "task_history": "history", "attempts": "attempts", "task_log": "log"}

ARCHIVE_COLUMNS: Mapping[str, Mapping[str, ColumnKind]] = {
    "ticks": {
        "schedule_id": _ID,
        "scheduled_for": _TIME,
        "tenant_id": _ID,
        "outcome": _TEXT,
        "reason": _TEXT,
        "task_id": _ID,
        "fired_at": _TIME,
        "node": _ID,
        "epoch": _INTEGER,
        "until": _TIME,
        "count": _INTEGER,
    },
    "task_history": {
        "id": _ID,
        "tenant_id": _ID,
        "queue": _TEXT,
        "type": _TEXT,
        "target": _TEXT,
        "payload": _TEXT,
        "payload_ref": _TEXT,
        "fair_key": _TEXT,
        "origin": _TEXT,
        "schedule_id": _ID,
        "schedule_name": _TEXT,
        "scheduled_for": _TIME,
        "run_at": _TIME,
        "priority": _INTEGER,
        "state": _TEXT,
        "attempt": _INTEGER,
        "max_attempts": _INTEGER,
        "retry": _TEXT,
        "timeout_seconds": _FLOAT,
        "labels": _TEXT,
        "worker": _TEXT,
        "fence": _INTEGER,
        "traceparent": _TEXT,
        "result": _TEXT,
        "error": _TEXT,
        "reason": _TEXT,
        "outcome": _TEXT,
        "response": _TEXT,
        "created_at": _TIME,
        "started_at": _TIME,
        "finished_at": _TIME,
    },
    "attempts": {
        "task_id": _ID,
        "tenant_id": _ID,
        "fence": _INTEGER,
        "attempt": _INTEGER,
        "worker": _TEXT,
        "started_at": _TIME,
        "ended_at": _TIME,
        "outcome": _TEXT,
        "error": _TEXT,
        "response": _TEXT,
    },
    "task_log": {
        "task_id": _ID,
        "id": _ID,
        "tenant_id": _ID,
        "at": _TIME,
        "attempt": _INTEGER,
        "worker": _TEXT,
        "text": _TEXT,
    },
}


class ArchiveSegment(NamedTuple):
    """A part of a month that is archived as one file. `recorded_until`: rows that were written later are in the next segment.

    `claim` changes when another process takes the segment over. `archived_at`: the file is complete and was verified.
    """

    table: str
    month: str
    number: int
    claim: UUID
    recorded_until: datetime
    archived_at: datetime | None = None

    @property
    def file(self) -> str:
        """The name of the file. A month is a directory with the form that readers of Parquet take for a partition."""
        dataset = DATASETS[self.table]
        return f"{dataset}/month={self.month}/{dataset}-{self.month}-{self.number}.parquet"

    @property
    def manifest(self) -> str:
        return self.file.removesuffix(".parquet") + ".json"


class ArchivePage(NamedTuple):
    """Rows of a segment, with values in the order of ARCHIVE_COLUMNS. `position`: of the next page, None after the last one."""

    rows: list[tuple[Any, ...]]
    position: str | None


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Written after the file was verified. A file without a manifest is not complete."""

    format: str = ARCHIVE_FORMAT
    schema_version: int = ARCHIVE_SCHEMA_VERSION
    everbeat_version: str
    dataset: str
    month: str
    segment: int
    file: str
    bytes: int
    rows: int
    row_groups: int
    first_at: datetime | None
    last_at: datetime | None
    archived_at: datetime
    columns: dict[str, str]

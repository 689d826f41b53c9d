"""Converts archived months to table rows and back, for both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everbeat.core.archives import ArchiveSegment
from everbeat.store.rows import Row


def latest_segment(rows: Sequence[Row]) -> tuple[ArchiveSegment | None, int]:
    """The newest segment if its rows are not removed yet, and the number of the segment to continue or to begin."""
    if not rows:
        return None, 1
    row = rows[0]
    if row["removed_at"] is not None:
        return None, row["segment"] + 1
    found = ArchiveSegment(
        row["table_name"], row["month"], row["segment"], row["claim"], row["recorded_until"], row["archived_at"]
    )
    return found, found.number


def segment_key(segment: ArchiveSegment) -> dict[str, Any]:
    return {"table_name": segment.table, "month": segment.month, "segment": segment.number}

"""Bulk operations: an action on all schedules or tasks that match a filter, executed by the nodes page by page.

An operation stores the page that it is about to change, before it changes it. After a crash, the next node repeats exactly this
page, and every action has the same result if it is repeated, so the numbers of an operation stay correct.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

MAX_MATCHED = 1_000_000
MAX_ERRORS = 20


class BulkSubject(StrEnum):
    SCHEDULES = "schedules"
    TASKS = "tasks"


class BulkAction(StrEnum):
    """What is done to each schedule (pause, resume, trigger, delete) or task (cancel, retry)."""

    PAUSE = "pause"
    RESUME = "resume"
    TRIGGER = "trigger"
    DELETE = "delete"
    CANCEL = "cancel"
    RETRY = "retry"


class BulkState(StrEnum):
    """failed: it could not be continued; `errors` has the reason. cancelled: aborted by a user. Both keep what is done."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class BulkError(msgspec.Struct, frozen=True):
    """Why one schedule or task was not changed."""

    subject: str
    message: str


class BulkOperation(msgspec.Struct, frozen=True, kw_only=True):
    """`filter` is JSON. `position`: the last id or name that was handled; `page`: those that are being handled.

    `matched` is the number at the creation. `done` and `failed` count those that were handled.
    """

    id: UUID
    tenant_id: UUID
    subject: BulkSubject
    action: BulkAction
    filter: str
    note: str | None
    actor: str
    key_id: UUID | None
    matched: int
    done: int = 0
    failed: int = 0
    state: BulkState = BulkState.RUNNING
    errors: tuple[BulkError, ...] = ()
    position: str | None
    page: tuple[str, ...] = ()
    created_at: datetime
    finished_at: datetime | None = None


class BulkProgress(NamedTuple):
    """A step of an operation: the new position and page, and what was handled since the last step."""

    position: str | None
    page: tuple[str, ...]
    done: int = 0
    failed: int = 0
    errors: tuple[BulkError, ...] = ()
    state: BulkState = BulkState.RUNNING

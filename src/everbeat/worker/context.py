"""The context of a handler: its task, its deadline, and its progress and log lines. Does no I/O."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import Progress
from everbeat.core.tasks import ClaimedTask, Origin

MAX_LINE_LENGTH = 8_000
MAX_BUFFERED = 64_000
MAX_MESSAGE_BYTES = 2_000
_TRUNCATED = " … (cut)"


class Cancelled(EverbeatError):
    """Raised by ctx.raise_if_cancelled() if the handler must stop. Catch it only to clean up, and raise it again."""


class TaskUpdate(NamedTuple):
    """The progress and the log lines since the last heartbeat."""

    progress: Progress | None
    log: str | None


class Context:
    """The context of the current attempt: its task, attempt number, deadline, progress and log."""

    __slots__ = (
        "_buffered",
        "_dropped",
        "_ends_at",
        "_fraction",
        "_has_progress",
        "_is_cancelled",
        "_lines",
        "_lock",
        "_message",
        "_payload",
        "_task",
        "lease_until",
        "worker",
    )

    def __init__(self, task: ClaimedTask, *, worker: str, ends_at: float | None = None) -> None:
        """`ends_at` is a time of the monotonic clock. It defaults to now plus the timeout of the task."""
        self._task = task
        self.worker = worker
        self.lease_until = task.lease_until
        self._ends_at = monotonic() + task.timeout_seconds if ends_at is None else ends_at
        self._payload: Any = msgspec.UNSET
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._buffered = self._dropped = 0
        self._has_progress = False
        self._fraction: float | None = None
        self._message: str | None = None

    def __repr__(self) -> str:
        return f"<Context {self.type} {self.task_id} attempt {self.attempt}/{self.max_attempts}>"

    @property
    def task_id(self) -> UUID:
        return self._task.id

    @property
    def type(self) -> str:
        return self._task.type

    @property
    def queue(self) -> str:
        return self._task.queue

    @property
    def payload(self) -> Any:
        if self._payload is msgspec.UNSET:
            self._payload = msgspec.json.decode(self._task.payload)
        return self._payload

    @property
    def attempt(self) -> int:
        return self._task.attempt

    @property
    def max_attempts(self) -> int:
        return self._task.max_attempts

    @property
    def fence(self) -> int:
        """A number that grows with each claim. Store it with the handler's writes to reject writes of older attempts."""
        return self._task.fence

    @property
    def origin(self) -> Origin:
        return self._task.origin

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that created the task, if any."""
        return self._task.schedule

    @property
    def schedule_id(self) -> UUID | None:
        return self._task.schedule_id

    @property
    def scheduled_for(self) -> datetime | None:
        return self._task.scheduled_for

    @property
    def traceparent(self) -> str | None:
        return self._task.traceparent

    @property
    def timeout_seconds(self) -> float:
        return self._task.timeout_seconds

    @property
    def seconds_left(self) -> float:
        """The time until this attempt times out. Negative after the timeout."""
        return self._ends_at - monotonic()

    @property
    def deadline(self) -> datetime:
        """The time at which this attempt times out, by the local clock."""
        return datetime.now(UTC) + timedelta(seconds=self.seconds_left)

    # Stopping

    @property
    def cancelled(self) -> bool:
        """Whether the handler must stop: the task was cancelled, timed out or lost its lease, or the worker shuts down."""
        return self._is_cancelled

    def raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            raise Cancelled(f"task {self.task_id} must stop: cancelled, timed out, lease lost, or the worker shuts down")

    def cancel(self) -> None:
        """Request the handler to stop. Called by the worker."""
        self._is_cancelled = True

    # Progress and log

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress: a fraction from 0 to 1, a message, or both. Only the latest is sent, so frequent calls are cheap."""
        if fraction is not None:
            fraction = min(max(float(fraction), 0.0), 1.0)
            if fraction != fraction:
                raise ValueError("progress: the fraction is not a number")
        with self._lock:
            self._has_progress = True
            if fraction is not None:
                self._fraction = fraction
            if message is not None:
                self._message = truncate(str(message), MAX_MESSAGE_BYTES)

    def log(self, text: str) -> None:
        """Add a line to the task's log. Lines are sent in batches. Lines above a limit are dropped and counted in the log."""
        line = truncate(str(text), MAX_LINE_LENGTH)
        with self._lock:
            if self._buffered + len(line) > MAX_BUFFERED:
                self._dropped += 1
                return
            self._lines.append(line)
            self._buffered += len(line) + 1

    @property
    def has_update(self) -> bool:
        return self._has_progress or bool(self._lines)

    def take_update(self) -> TaskUpdate | None:
        """Remove and return the progress and log lines to send. If sending fails, pass them to `return_update`."""
        with self._lock:
            if not self._has_progress and not self._lines:
                return None
            progress = Progress(fraction=self._fraction, message=self._message) if self._has_progress else None
            if self._dropped:
                self._lines.append(f"[{self._dropped} more lines were dropped: the log buffer was full]")
            log = "\n".join(self._lines) if self._lines else None
            self._lines = []
            self._buffered = self._dropped = 0
            self._has_progress = False
        return TaskUpdate(progress, log)

    def return_update(self, updates: TaskUpdate) -> None:
        """Put back an update that could not be sent, before the lines added since."""
        with self._lock:
            # The stored progress is at least as recent as the returned one.
            self._has_progress = self._has_progress or updates.progress is not None
            if updates.log is not None:
                self._lines.insert(0, updates.log)
                self._buffered += len(updates.log) + 1


def truncate(text: str, max_length: int) -> str:
    """Truncate a long text, with a note, and replace the characters that UTF-8 or PostgreSQL cannot store."""
    if len(text) > max_length:
        text = text[: max_length - len(_TRUNCATED)] + _TRUNCATED
    return storable(text)


def storable(text: str) -> str:
    """Replace unpaired surrogates and NUL."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")

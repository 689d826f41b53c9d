"""Submits rows of the outbox in order, and finds the rows that Everbeat refuses."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from everbeat.client.errors import ServerProblem
from everbeat.outbox.table import OutboxRow, RejectedRow

# Submits the JSON of tasks in one request, all or none. Raises ServerProblem, or NotReachable.
SubmitBatch = Callable[[Sequence[bytes]], Awaitable[None]]

MAX_ERROR_CHARACTERS = 2000
_INDEXED_FIELD = re.compile(r"tasks\[(\d+)\](?:\.(.+))?")


class Refusal(Enum):
    """What a refused request means: single rows are invalid, some row may be, or all rows have to wait."""

    OF_ROWS = "of_rows"
    OF_REQUEST = "of_request"
    WAIT = "wait"


class SentRows(NamedTuple):
    """`problem`: why the remaining rows were not sent, if there are any."""

    accepted: list[UUID]
    rejected: list[RejectedRow]
    problem: Exception | None = None


def refusal_of(problem: ServerProblem) -> Refusal:
    """Return what a problem means for the rows of the request."""
    if problem.status == 422 and errors_by_index(problem):
        return Refusal.OF_ROWS
    if problem.status in (400, 413, 422):
        return Refusal.OF_REQUEST
    # A quota without a time to wait for: the request is too large for it, or one payload is.
    if problem.slug == "quota-exceeded" and problem.retry_after_seconds is None:
        return Refusal.OF_REQUEST
    return Refusal.WAIT


def errors_by_index(problem: ServerProblem) -> dict[int, str]:
    """Return the errors that name a task of the batch, by its index."""
    errors: dict[int, list[str]] = {}
    for error in problem.errors:
        match = _INDEXED_FIELD.fullmatch(str(error.get("field", "")))
        if match is not None:
            errors.setdefault(int(match[1]), []).append(f"{match[2] or 'task'}: {error.get('message', '')}")
    return {index: "; ".join(messages) for index, messages in errors.items()}


async def send_rows(rows: Sequence[OutboxRow], submit: SubmitBatch) -> SentRows:
    """Submit rows in order. Stops at the first problem that concerns all of them."""
    accepted: list[UUID] = []
    rejected: list[RejectedRow] = []
    # The parts of the batch that have not been submitted. The first row is in the last part.
    parts = [list(rows)] if rows else []
    while parts:
        part = parts.pop()
        try:
            await submit([row.task for row in part])
        except ServerProblem as problem:
            refusal = refusal_of(problem)
            if refusal is Refusal.WAIT:
                return SentRows(accepted, rejected, problem)
            rest, refused = _without_refused(part, problem, refusal)
            rejected += refused
            parts += reversed(rest)
        except Exception as error:
            return SentRows(accepted, rejected, error)
        else:
            accepted += [row.id for row in part]
    return SentRows(accepted, rejected)


def _without_refused(
    part: list[OutboxRow], problem: ServerProblem, refusal: Refusal
) -> tuple[list[list[OutboxRow]], list[RejectedRow]]:
    """Return the parts to submit next, in order, and the rows to move aside."""
    if refusal is Refusal.OF_ROWS:
        errors: Mapping[int, str] = errors_by_index(problem)
        refused = [RejectedRow(part[index].id, _shortened(errors[index])) for index in sorted(errors) if index < len(part)]
        rest = [row for index, row in enumerate(part) if index not in errors]
        if refused:
            return ([rest] if rest else []), refused
    if len(part) == 1:
        return [], [RejectedRow(part[0].id, _shortened(str(problem)))]
    middle = len(part) // 2
    return [part[:middle], part[middle:]], []


def _shortened(text: str) -> str:
    return text[:MAX_ERROR_CHARACTERS].replace("\0", "")


def batch_body(tasks: Sequence[bytes]) -> Any:
    """Return the body of POST /v1/tasks/batch."""
    return {"tasks": [msgspec.Raw(task) for task in tasks]}

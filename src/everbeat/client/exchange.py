"""Sends a request with retries: a generator that both HTTP transports run.

The generator yields a request to send or a time to sleep, and receives the outcome. A request that is safe to repeat is
retried after a lost connection, 429 or 503, until the deadline. Other requests are retried only if they were certainly not
processed: no connection, or 429. Delays have full jitter, so that clients rejected at the same time do not retry together.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from typing import NamedTuple

from everbeat.client.errors import NotReachable
from everbeat.client.requests import HttpResponse, Repeat, Request, raise_for_problem, retry_after_seconds

_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.1, 5.0
_MAX_DOUBLINGS = 10


class Send(NamedTuple):
    request: Request


class Sleep(NamedTuple):
    seconds: float


class NoResponse(NamedTuple):
    """There was no response. If `was_sent` is False, the server cannot have received the request."""

    reason: str
    was_sent: bool


Exchange = Generator[Send | Sleep, HttpResponse | NoResponse | None, HttpResponse]


class RetryBudget(NamedTuple):
    """How long to retry. The clock and the random numbers can be replaced in tests."""

    deadline_seconds: float = 30.0
    monotonic: Callable[[], float] = time.monotonic
    random_fraction: Callable[[], float] = random.random


def exchange(request: Request, url: str, retry_budget: RetryBudget) -> Exchange:
    """Return the response, or raise its problem. Retries as described above."""
    deadline = retry_budget.monotonic() + retry_budget.deadline_seconds
    tries = lost_count = 0
    while True:
        outcome = yield Send(request)
        tries += 1
        if isinstance(outcome, HttpResponse) and (outcome.status < 400 or _was_already_deleted(request, outcome, lost_count)):
            return outcome
        wait = _wait_seconds(request, outcome, tries, retry_budget.random_fraction())
        if wait is None or retry_budget.monotonic() + wait > deadline:
            if isinstance(outcome, HttpResponse):
                raise_for_problem(outcome)
            raise NotReachable(url, outcome.reason if isinstance(outcome, NoResponse) else "no response")
        lost_count += not isinstance(outcome, HttpResponse)
        yield Sleep(wait)


def _was_already_deleted(request: Request, response: HttpResponse, lost_count: int) -> bool:
    """Whether a DELETE has succeeded despite the 404: an earlier try whose response was lost has deleted the object."""
    return request.method == "DELETE" and response.status == 404 and lost_count > 0


def _wait_seconds(
    request: Request, outcome: HttpResponse | NoResponse | None, tries: int, random_fraction: float
) -> float | None:
    if request.repeat is Repeat.NEVER:
        return None
    is_safe = request.repeat is Repeat.SAFE
    backoff = min(_FIRST_DELAY_SECONDS * float(1 << min(tries - 1, _MAX_DOUBLINGS)), _MAX_DELAY_SECONDS) * random_fraction
    if isinstance(outcome, NoResponse):
        return backoff if is_safe or not outcome.was_sent else None
    if outcome is None:
        return None
    if outcome.status == 429 or (outcome.status == 503 and is_safe):
        requested = retry_after_seconds(outcome)
        return backoff if requested is None else requested + backoff
    return None

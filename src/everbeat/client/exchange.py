"""Sends a request with retries: a generator that both HTTP transports run.

The generator yields a request to send or a time to sleep, and receives the outcome. A request that is safe to repeat is
retried after a lost connection, 429 or 503, until the deadline. Other requests are retried only if they were certainly not
processed: no connection, or 429. Delays have full jitter, so that clients rejected at the same time do not retry together.

If there are several servers, a request that is repeated goes to the next one at once, and waits only after all have failed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from typing import NamedTuple

from everbeat.client.errors import NotReachable
from everbeat.client.requests import HttpResponse, Repeat, Request, raise_for_problem, retry_after_seconds
from everbeat.client.servers import REPORT_AFTER_SECONDS, Servers

_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.1, 5.0
_MAX_DOUBLINGS = 10
_UNAVAILABLE = 503
_FAILOVER_TIMEOUT_SECONDS = 5.0
_CLAIM_MARGIN_SAVED_SECONDS = 5.0
_SMALL_BODY_BYTES = 64 * 1024


class Send(NamedTuple):
    request: Request
    url: str


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


def exchange(request: Request, servers: Servers, retry_budget: RetryBudget) -> Exchange:
    """Return the response, or raise its problem. Retries as described above."""
    started = retry_budget.monotonic()
    deadline = started + retry_budget.deadline_seconds
    tries = lost_count = 0
    is_certain = True
    if servers.has_alternatives:
        request = _shortened(request)
    tried: set[str] = set()  # since the last pause
    while True:
        url = servers.current
        tried.add(url)
        outcome = yield Send(request, url)
        tries += 1
        is_down = _note_outcome(servers, url, outcome)
        if isinstance(outcome, HttpResponse) and (outcome.status < 400 or _was_already_deleted(request, outcome, lost_count)):
            return outcome
        is_certain &= not _may_have_taken_effect(outcome)
        wait = _wait_seconds(request, outcome, tries, retry_budget.random_fraction())
        now = retry_budget.monotonic()
        if wait is not None and is_down and servers.current not in tried and now <= deadline:
            lost_count += not isinstance(outcome, HttpResponse)
            continue
        if wait is None or now + wait > deadline:
            if isinstance(outcome, HttpResponse):
                raise_for_problem(outcome, is_certain=is_certain)
            raise NotReachable(str(servers), servers.reason, now - started)
        if is_down and now + wait - started >= REPORT_AFTER_SECONDS:
            servers.report_outage(deadline - now)
        lost_count += not isinstance(outcome, HttpResponse)
        tried.clear()
        yield Sleep(wait)


def _note_outcome(servers: Servers, url: str, outcome: HttpResponse | NoResponse | None) -> bool:
    """Record whether the server responds. Returns whether it is down: there was no response, or it is not available."""
    if isinstance(outcome, HttpResponse) and outcome.status != _UNAVAILABLE:
        servers.responded(url)
        return False
    servers.failed(url, outcome.reason if isinstance(outcome, NoResponse) else "not available")
    return True


def _shortened(request: Request) -> Request:
    """Return the request with a shorter timeout, because another server can respond instead."""
    if request.repeat is Repeat.NEVER and request.timeout_seconds is not None:
        return request._replace(timeout_seconds=max(1.0, request.timeout_seconds - _CLAIM_MARGIN_SAVED_SECONDS))
    if request.repeat is Repeat.SAFE and request.timeout_seconds is None and len(request.body or b"") <= _SMALL_BODY_BYTES:
        return request._replace(timeout_seconds=_FAILOVER_TIMEOUT_SECONDS)
    return request


def _may_have_taken_effect(outcome: HttpResponse | NoResponse | None) -> bool:
    """Whether a failed try may have taken effect. The commit of a 503 may have succeeded after the server gave up."""
    return outcome.status >= 500 if isinstance(outcome, HttpResponse) else outcome is not None and outcome.was_sent


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

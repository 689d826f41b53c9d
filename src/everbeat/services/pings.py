"""Pings of jobs that run elsewhere. Pings that arrive together are written by one transaction.

A batch reads the checks, computes their new positions, and writes those whose version has not changed meanwhile. A check that
another node, the evaluator or an edit has changed in between is read again. All pings of a check in a batch are applied in the
order of their arrival, and get the time of the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.check_states import CheckStep, ping_step
from everbeat.core.checks import MAX_BODY_BYTES, Check, CheckChange, Ping, PingRequest, token_of
from everbeat.core.errors import NotFound, StoreLocked, TooManyRequests
from everbeat.core.rates import Rate
from everbeat.core.timeline import TimelineCache
from everbeat.services.check_changes import CheckPublisher, change_of, expectation_of
from everbeat.services.group_commit import GroupCommit
from everbeat.services.locked_writes import LOCKED_MESSAGE
from everbeat.services.rate_limits import RateLimiter
from everbeat.store.base import Store

_MAX_BATCH = 500
_TRIES = 20
_BURST_SECONDS = 60.0


class _Outcome(Enum):
    WRITTEN = "written"
    UNKNOWN = "unknown"
    CHANGED = "changed"


class _Arrival(NamedTuple):
    token: str
    ping: PingRequest
    now: datetime | None = None


class PingService:
    """Accepts pings. Each check may have `per_second` on average on this node, with bursts of a minute's worth."""

    def __init__(
        self,
        store: Store,
        timelines: TimelineCache,
        publisher: CheckPublisher,
        *,
        per_second: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._timelines = timelines
        self._publisher = publisher
        rate = Rate(per_second, max(1.0, per_second * _BURST_SECONDS)) if per_second else None
        self._limiter = RateLimiter(rate, monotonic=monotonic)
        self._commit: GroupCommit[_Arrival, _Outcome] = GroupCommit(self._write, max_rows=_MAX_BATCH, count_rows=lambda _: 1)

    async def accept(self, token_text: str, ping: PingRequest, *, now: datetime | None = None) -> None:
        """Write a ping durably. Its time is that of the database. Raises NotFound and TooManyRequests."""
        token = token_of(token_text)
        if token is None:
            raise unknown_token()
        if wait := self._limiter.take(token):
            raise TooManyRequests("This check has received too many pings.", wait)
        if ping.body is not None and len(ping.body) > MAX_BODY_BYTES:
            ping = msgspec.structs.replace(ping, body=ping.body[:MAX_BODY_BYTES])
        outcome = await self._commit.add(_Arrival(token, ping, now))
        if outcome is _Outcome.UNKNOWN:
            raise unknown_token()
        if outcome is _Outcome.CHANGED:
            raise StoreLocked(LOCKED_MESSAGE)

    async def _write(self, arrivals: list[_Arrival]) -> list[_Outcome]:
        outcomes = [_Outcome.CHANGED] * len(arrivals)
        waiting = list(range(len(arrivals)))
        for _ in range(_TRIES):
            tokens = list(dict.fromkeys(arrivals[index].token for index in waiting))
            moment, checks = await self._store.check_find_tokens(tokens, now=arrivals[0].now)
            by_token = _by_token(checks, moment)
            for index in waiting:
                if arrivals[index].token not in by_token:
                    outcomes[index] = _Outcome.UNKNOWN
            known = [index for index in waiting if outcomes[index] is not _Outcome.UNKNOWN]
            if not known:
                break
            written = await self._write_known(
                [(by_token[arrivals[index].token], arrivals[index].ping) for index in known], moment
            )
            for index in known:
                if by_token[arrivals[index].token].id in written:
                    outcomes[index] = _Outcome.WRITTEN
            waiting = [index for index in known if outcomes[index] is _Outcome.CHANGED]
            if not waiting:
                break
        return outcomes

    async def _write_known(self, pairs: Sequence[tuple[Check, PingRequest]], moment: datetime) -> set[UUID]:
        """Apply pings to their checks. Returns the checks that nobody else has changed meanwhile."""
        checks, pings = {check.id: check for check, _ in pairs}, dict[UUID, list[PingRequest]]()
        for check, ping in pairs:
            pings.setdefault(check.id, []).append(ping)
        changes = [self._change(check, pings[id_], moment) for id_, check in checks.items()]
        written = await self._store.check_advance(changes)
        self._publisher.publish(change for change in changes if change.check.id in written)
        return written

    def _change(self, check: Check, pings: Sequence[PingRequest], moment: datetime) -> CheckChange:
        expectation = expectation_of(check, self._timelines)
        step, applied = CheckStep(check.position), []
        for given in pings:
            next_step, ping = ping_step(step.position, expectation, Ping(at=moment, **msgspec.structs.asdict(given)))
            step = step.then(next_step)
            applied.append(ping)
        return change_of(check, step, tuple(applied))


def _by_token(checks: Sequence[Check], moment: datetime) -> dict[str, Check]:
    found = {check.token: check for check in checks}
    for check in checks:
        if check.old_token is not None and check.old_token_until is not None and moment < check.old_token_until:
            found.setdefault(check.old_token, check)
    return found


def unknown_token() -> NotFound:
    return NotFound("there is no check with this ping URL")

"""Live updates: tells the pages of the dashboard when to load their lists again, and the fire lag of the last second.

A node may fire hundreds of ticks per second, and a dashboard may be open many times. Therefore the events of a tenant are
summarized once for all its pages: in constant memory, at most one summary per second, and at most one refresh of the pages
every few seconds. A summary is encoded once. All pages are refreshed at the same moment, so that they can share what is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.errors import TooManyRequests
from everbeat.services.event_stream import (
    MAX_SUBSCRIBERS,
    MAX_SUBSCRIBERS_PER_TENANT,
    PUBLISHED_KINDS,
    EventKind,
    EventStream,
    StreamEvent,
)

SUMMARY_SECONDS = 1.0
REFRESH_SECONDS = 3.0
# The first event after a pause is reported after this time, together with those that follow it closely.
FIRST_SECONDS = 0.1

_REFRESH = b"event: refresh\ndata: {}\n\n"
_MAX_SUBJECTS = 1000
_RETRY_SECONDS = 10.0
_SUBJECTS = {EventKind.TICK: "schedule_id", EventKind.TASK: "id"}

_encode = msgspec.json.Encoder().encode


class Interest(NamedTuple):
    """What a page shows: all changes of a kind, or those of one schedule (ticks) or of one task."""

    kind: EventKind
    subject: UUID | None = None


class _Changes:
    """What has changed since the last refresh. The value is None if everything of this kind may have changed."""

    def __init__(self) -> None:
        self._subjects: dict[EventKind, set[UUID] | None] = {}

    def __bool__(self) -> bool:
        return bool(self._subjects)

    def add(self, event: StreamEvent) -> None:
        subjects = self._subjects.setdefault(event.kind, set())
        if subjects is None:
            return
        subject = _subject_of(event)
        if subject is None or len(subjects) >= _MAX_SUBJECTS:
            self._subjects[event.kind] = None
        else:
            subjects.add(subject)

    def add_all(self) -> None:
        self._subjects = dict.fromkeys(PUBLISHED_KINDS)

    def concern(self, interest: Interest) -> bool:
        if interest.kind not in self._subjects:
            return False
        subjects = self._subjects[interest.kind]
        return interest.subject is None or subjects is None or interest.subject in subjects


class _Lag:
    """The ticks that fired since the last summary."""

    def __init__(self) -> None:
        self.ticks = 0
        self._worst_ms = 0.0
        self._at: datetime | None = None

    def add(self, event: StreamEvent) -> None:
        fired_at = event.data.get("fired_at")
        if fired_at is None:
            return
        self._at = at = datetime.fromisoformat(fired_at)
        self._worst_ms = max(self._worst_ms, (at - datetime.fromisoformat(event.data["scheduled_for"])).total_seconds() * 1000)
        self.ticks += 1

    def block(self) -> bytes | None:
        if self._at is None:
            return None
        return b"event: lag\ndata: %b\n\n" % _encode(
            {"at": round(self._at.timestamp(), 3), "ms": round(self._worst_ms, 1), "ticks": self.ticks}
        )


class LiveSubscription:
    """The updates of one open page, until the page or the event stream closes it."""

    def __init__(self, tenant_id: UUID, interests: frozenset[Interest], *, wants_lag: bool) -> None:
        self.tenant_id = tenant_id
        self.is_closed = False
        self._interests = interests
        self._wants_lag = wants_lag
        self._lag: bytes | None = None
        self._is_stale = False
        self._woken = asyncio.Event()

    def offer(self, changes: _Changes | None, lag: bytes | None) -> None:
        """Note a summary. A page that reads slowly gets the latest one, and costs no memory."""
        if lag is not None and self._wants_lag:
            self._lag = lag
            self._woken.set()
        if changes is not None and not self._is_stale and any(changes.concern(one) for one in self._interests):
            self._is_stale = True
            self._woken.set()

    def close(self) -> None:
        self.is_closed = True
        self._woken.set()

    async def take(self, timeout_seconds: float) -> bytes:
        """Return the next events, encoded, or wait for them. Returns nothing after the timeout or once closed."""
        if self._lag is None and not self._is_stale and not self.is_closed:
            self._woken.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._woken.wait()
            except TimeoutError:
                return b""
        block = self._lag or b""
        if self._is_stale:
            block += _REFRESH
        self._lag, self._is_stale = None, False
        return block


class _TenantUpdates:
    """Summarizes the events of one tenant, and tells the pages that are open."""

    def __init__(self, tenant_id: UUID) -> None:
        self.tenant_id = tenant_id
        self.pages: dict[LiveSubscription, None] = {}
        self.version = 0
        self._changes = _Changes()
        self._lag = _Lag()
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = self._refreshed_at = float("-inf")

    def offer(self, event: StreamEvent) -> None:
        if event.tenant_id not in (None, self.tenant_id):
            return
        self._changes.add(event)
        if event.kind is EventKind.TICK:
            self._lag.add(event)
        self._schedule()

    def add_lost(self, count: int) -> None:
        self._changes.add_all()
        self._schedule()

    def close(self) -> None:
        for page in self.pages:
            page.close()
        self.stop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time() + FIRST_SECONDS, self._told_at + SUMMARY_SECONDS), self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._told_at = now = asyncio.get_running_loop().time()
        lag, self._lag = self._lag.block(), _Lag()
        changes = None
        # A timer may be early by the resolution of the clock.
        if self._changes and now >= self._refreshed_at + REFRESH_SECONDS - 0.05:
            changes, self._changes = self._changes, _Changes()
            self._refreshed_at = now
            self.version += 1
        for page in self.pages:
            page.offer(changes, lag)
        if self._changes:
            self._schedule()


class LiveUpdates:
    """The open pages of the dashboard on this node."""

    def __init__(self, event_stream: EventStream) -> None:
        self._event_stream = event_stream
        self._tenants: dict[UUID, _TenantUpdates] = {}
        self._count = 0

    def check_capacity(self, tenant_id: UUID) -> None:
        """Raise TooManyRequests if no more pages may listen."""
        self._event_stream.check_capacity(tenant_id)
        found = self._tenants.get(tenant_id)
        if self._count >= MAX_SUBSCRIBERS or (found is not None and len(found.pages) >= MAX_SUBSCRIBERS_PER_TENANT):
            raise TooManyRequests("too many pages of the dashboard are open on this node; close one first", _RETRY_SECONDS)

    @contextmanager
    def open(self, tenant_id: UUID, interests: frozenset[Interest], *, wants_lag: bool) -> Iterator[LiveSubscription]:
        page = LiveSubscription(tenant_id, interests, wants_lag=wants_lag)
        self._add(page)
        try:
            yield page
        finally:
            page.close()
            self._remove(page)

    def version(self, tenant_id: UUID) -> int | None:
        """The number of refreshes so far, or None if no page of the tenant listens. What was read before the latest is old."""
        found = self._tenants.get(tenant_id)
        return None if found is None else found.version

    def _add(self, page: LiveSubscription) -> None:
        tenant = self._tenants.get(page.tenant_id)
        if tenant is None:
            tenant = self._tenants[page.tenant_id] = _TenantUpdates(page.tenant_id)
            tenant.pages[page] = None
            self._event_stream.add(tenant)
        else:
            tenant.pages[page] = None
        self._count += 1

    def _remove(self, page: LiveSubscription) -> None:
        tenant = self._tenants[page.tenant_id]
        del tenant.pages[page]
        self._count -= 1
        if not tenant.pages:
            tenant.stop()
            self._event_stream.unsubscribe(tenant)
            del self._tenants[page.tenant_id]


def _subject_of(event: StreamEvent) -> UUID | None:
    name = _SUBJECTS.get(event.kind)
    found = None if name is None else event.data.get(name)
    if isinstance(found, UUID) or found is None:
        return found
    return UUID(found)  # an event of another node

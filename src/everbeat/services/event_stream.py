"""The feed: what happens, told while it happens to whoever listens. Hints, never the truth: the database is.

Nobody listens most of the time, so a service asks `has_audience` before it makes anything. A listener has a bounded queue: one
that reads too slowly is told how many events it lost, and costs no memory. Between nodes events travel as messages of the
store, a few a second and of bounded size, and only to nodes that have said lately whom they listen for; what does not fit is
counted as lost. On a store whose processes cannot hear each other a listener hears its own node.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.clock import Monotonic
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.core.errors import TooManyRequests
from everbeat.services.loops import Periodic
from everbeat.store.base import Store
from everbeat.store.values import Fired, Firing

MAX_SUBSCRIBERS = 1000
MAX_SUBSCRIBERS_PER_TENANT = 100
QUEUE_SIZE = 1000
# PostgreSQL takes messages of less than 8000 bytes.
MAX_MESSAGE_BYTES = 7900

_OUTBOX_SIZE = 1000
_SEND_SECONDS = 0.1
_INTEREST_SECONDS = 3.0
_INTEREST_LASTS_SECONDS = 10.0
_MAX_TENANTS_NAMED = 100
_RETRY_SECONDS = 10.0

_encode = msgspec.json.Encoder().encode


class EventKind(StrEnum):
    """What an event is about. `hello` opens a stream, `lost` says how many events are missing there."""

    HELLO = "hello"
    TICK = "tick"
    TASK = "task"
    CLUSTER = "cluster"
    LOST = "lost"


PUBLISHED_KINDS = frozenset({EventKind.TICK, EventKind.TASK, EventKind.CLUSTER})


class StreamEvent(NamedTuple):
    """Something that happened. `tenant_id` None: it concerns everybody."""

    id: UUID
    kind: EventKind
    tenant_id: UUID | None
    data: dict[str, Any]


class _Travelling(msgspec.Struct, array_like=True):
    """An event on its way to another node."""

    id: UUID
    kind: EventKind
    tenant_id: UUID | None
    data: dict[str, Any]


class _Message(msgspec.Struct, omit_defaults=True):
    """What a node says to the others. `wants`: the tenants it has listeners for; an empty list means any."""

    sender: UUID
    wants: list[UUID] | None = None
    events: list[_Travelling] = []
    lost: dict[UUID, int] = {}


_decode = msgspec.json.Decoder(_Message).decode


class EventSubscription:
    """One listener's queue. Ends when it is closed, by itself or by the feed."""

    def __init__(self, tenant_id: UUID, kinds: frozenset[EventKind], size: int) -> None:
        self.tenant_id = tenant_id
        self._kinds = kinds
        self._size = size
        self._queue: deque[StreamEvent] = deque()
        self._lost = 0
        self._woken = asyncio.Event()
        self.is_closed = False

    def offer(self, event: StreamEvent) -> None:
        if event.kind not in self._kinds or event.tenant_id not in (None, self.tenant_id):
            return
        if self._lost or len(self._queue) >= self._size:
            self._lost += 1
        else:
            self._queue.append(event)
        self._woken.set()

    def lose(self, count: int) -> None:
        """Events that were lost before they came here."""
        if self._lost or len(self._queue) >= self._size:
            self._lost += count
        else:
            self._queue.append(_lost_event(count))
        self._woken.set()

    def close(self) -> None:
        self.is_closed = True
        self._woken.set()

    async def take(self, timeout_seconds: float) -> list[StreamEvent]:
        """All that is there, as soon as there is any; nothing when the time is up or the end has come."""
        if not self._queue and not self._lost and not self.is_closed:
            self._woken.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._woken.wait()
            except TimeoutError:
                return []
        events, self._queue = list(self._queue), deque()
        if self._lost:
            lost, self._lost = self._lost, 0
            events.append(_lost_event(lost))
        return events


class EventStream:
    """Where services tell, and listeners hear. Without a store, or with one that is deaf, only inside this process."""

    def __init__(self, store: Store | None = None, *, monotonic: Monotonic = time.monotonic, size: int = QUEUE_SIZE) -> None:
        self._store = store
        self._monotonic = monotonic
        self._size = size
        self._id = uuid_utils.compat.uuid7()
        self._listeners: dict[EventSubscription, None] = {}
        self._by_tenant: Counter[UUID] = Counter()
        self._others_until = float("-inf")
        self._wanted_there: dict[UUID | None, float] = {}
        self._outbox: deque[_Travelling] = deque()
        self._lost: Counter[UUID] = Counter()
        self._is_closed = False
        self.on_change: Callable[[], None] = _nothing
        self.receives_other_nodes = store is not None and store.event_stream_listen(self._on_notice)

    @property
    def has_audience(self) -> bool:
        """Whether anybody listens, here or elsewhere: asked before an event is even made."""
        return bool(self._listeners) or self._monotonic() < self._others_until

    # Listening

    def check_capacity(self, tenant_id: UUID) -> None:
        """Whether one more may listen; asked apart, because a stream can only be refused before it begins."""
        if self._is_closed or len(self._listeners) >= MAX_SUBSCRIBERS:
            raise TooManyRequests(f"this node serves {MAX_SUBSCRIBERS} event streams at most; try again later", _RETRY_SECONDS)
        if self._by_tenant[tenant_id] >= MAX_SUBSCRIBERS_PER_TENANT:
            message = f"a tenant may have {MAX_SUBSCRIBERS_PER_TENANT} event streams on a node; close others first"
            raise TooManyRequests(message, _RETRY_SECONDS)

    def subscribe(self, tenant_id: UUID, kinds: Iterable[EventKind] = PUBLISHED_KINDS) -> EventSubscription:
        subscription = EventSubscription(tenant_id, frozenset(kinds), self._size)
        self._listeners[subscription] = None
        self._by_tenant[tenant_id] += 1
        if self._is_closed:
            subscription.close()
        self.on_change()
        return subscription

    def unsubscribe(self, subscription: EventSubscription) -> None:
        subscription.close()
        if self._listeners.pop(subscription, subscription) is None:
            self._by_tenant[subscription.tenant_id] -= 1

    def close(self) -> None:
        """End every stream: the server goes down."""
        self._is_closed = True
        for subscription in self._listeners:
            subscription.close()

    # Telling

    def publish(self, kind: EventKind, tenant_id: UUID | None, data: dict[str, Any], *, here_only: bool = False) -> None:
        event = StreamEvent(uuid_utils.compat.uuid7(), kind, tenant_id, data)
        self._offer(event)
        if here_only or not self._is_wanted_there(tenant_id):
            return
        if len(self._outbox) < _OUTBOX_SIZE:
            self._outbox.append(_Travelling(*event))
        elif tenant_id is not None:
            self._lost[tenant_id] += 1
        self.on_change()

    def publish_task(self, change: str, tenant_id: UUID, id_: UUID, **more: Any) -> None:
        """What changed about a task. `more` is what is known at that point, without looking anything up."""
        self.publish(EventKind.TASK, tenant_id, {"change": change, "id": id_, **more})

    def publish_ticks(self, firings: Sequence[Firing], fired: Sequence[Fired]) -> None:
        by_id = {firing.schedule_id: firing for firing in firings}
        for one in fired:
            firing = by_id[one.schedule_id]
            if one.outcome is not None and firing.fires is not None:
                self.publish(EventKind.TICK, firing.tenant_id, _tick_data(firing, firing.fires, one))
            for skip in firing.skips:
                data: dict[str, Any] = {"schedule_id": one.schedule_id, "scheduled_for": rfc3339(skip.first)}
                data |= {"outcome": "skipped", "reason": skip.reason.value, "until": rfc3339(skip.last), "count": skip.count}
                self.publish(EventKind.TICK, firing.tenant_id, data)

    def _offer(self, event: StreamEvent) -> None:
        for subscription in self._listeners:
            subscription.offer(event)

    def _is_wanted_there(self, tenant_id: UUID | None) -> bool:
        now = self._monotonic()
        if now >= self._others_until:
            return False
        until = self._wanted_there
        return tenant_id is None or max(until.get(tenant_id, 0.0), until.get(None, 0.0)) > now

    # Between nodes

    def _on_notice(self, text: str) -> None:
        try:
            message = _decode(text)
        except msgspec.MsgspecError:  # of a newer version, or of somebody else: a hint that is not understood
            return
        if message.sender == self._id:
            return
        if message.wants is not None:
            self._note_interest(message.wants)
        for one in message.events:
            self._offer(StreamEvent(one.id, one.kind, one.tenant_id, one.data))
        for tenant_id, count in message.lost.items():
            for subscription in self._listeners:
                if subscription.tenant_id == tenant_id:
                    subscription.lose(count)

    def _note_interest(self, tenants: Sequence[UUID]) -> None:
        now = self._monotonic()
        self._others_until = now + _INTEREST_LASTS_SECONDS
        self._wanted_there = {tenant: until for tenant, until in self._wanted_there.items() if until > now}
        for tenant in tenants or (None,):
            self._wanted_there[tenant] = self._others_until

    def next_message(self, *, with_interest: bool) -> str | None:
        """What the other nodes should hear next: as many events as fit."""
        wants = self._interest() if with_interest else None
        message = _Message(self._id, wants)
        size = len(_encode(message)) + 100
        while self._outbox:
            length = len(_encode(self._outbox[0])) + 1
            if size + length > MAX_MESSAGE_BYTES:
                break
            size += length
            message.events.append(self._outbox.popleft())
        # Each takes 60 bytes at most; what has no room now has it next time.
        for tenant_id in list(self._lost)[: max(MAX_MESSAGE_BYTES - size, 0) // 60]:
            message.lost[tenant_id] = self._lost.pop(tenant_id)
        if wants is None and not message.events and not message.lost:
            return None
        return _encode(message).decode()

    def _interest(self) -> list[UUID] | None:
        tenants = [tenant for tenant, count in self._by_tenant.items() if count > 0]
        if not tenants:
            return None
        return tenants if len(tenants) <= _MAX_TENANTS_NAMED else []

    @property
    def has_more(self) -> bool:
        return bool(self._outbox or self._lost)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)


class EventRelay(Periodic):
    """Carries events between the nodes: what they should hear, and every few seconds that this one listens."""

    name = "relay"
    deadline_seconds = 30.0

    def __init__(self, store: Store, event_stream: EventStream, *, monotonic: Monotonic = time.monotonic) -> None:
        super().__init__(_INTEREST_SECONDS)
        self._store = store
        self._event_stream = event_stream
        self._monotonic = monotonic
        self._said_at = float("-inf")
        self._had_listeners = False
        event_stream.on_change = self.wake

    async def run_once(self, now: datetime | None = None) -> bool:
        has_listeners = self._event_stream.has_listeners
        is_new = has_listeners and not self._had_listeners
        with_interest = has_listeners and (is_new or self._monotonic() - self._said_at >= _INTEREST_SECONDS)
        self._had_listeners = has_listeners
        message = self._event_stream.next_message(with_interest=with_interest)
        if message is None:
            return False
        if with_interest:
            self._said_at = self._monotonic()
        await self._store.event_stream_send(message)
        if now is None:
            await asyncio.sleep(_SEND_SECONDS)
        return self._event_stream.has_more


def _tick_data(firing: Firing, tick: datetime, fired: Fired) -> dict[str, Any]:
    data = {"schedule_id": firing.schedule_id, "scheduled_for": rfc3339(tick), "outcome": fired.outcome}
    if fired.reason is not None:
        return data | {"reason": fired.reason}
    return data | {"task_id": firing.task_id, "fired_at": optional_rfc3339(fired.fired_at)}


def _lost_event(count: int) -> StreamEvent:
    return StreamEvent(uuid_utils.compat.uuid7(), EventKind.LOST, None, {"count": count})


def _nothing() -> None:
    """For feeds whose events go nowhere else."""

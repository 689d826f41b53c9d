"""The event stream: reports changes to connected clients while they happen. Events are hints; the database is authoritative.

Most of the time no client is connected, so a service checks `has_subscribers` before it creates an event. A subscription has
a queue of limited size: a client that reads too slowly gets the number of events it lost, and costs no memory. Between nodes,
events are sent as messages of the store: a few per second, of limited size, and only for tenants for which another node has
recently announced subscribers. Events that do not fit are counted as lost. If the processes on a store cannot send each other
messages, a client gets the events of its own node only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
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
    """The kind of an event. `hello` is the first event of a stream; `lost` contains the number of events that are missing."""

    HELLO = "hello"
    TICK = "tick"
    TASK = "task"
    CLUSTER = "cluster"
    CHECK = "check"
    INCIDENT = "incident"
    LOST = "lost"


PUBLISHED_KINDS = frozenset({EventKind.TICK, EventKind.TASK, EventKind.CLUSTER, EventKind.CHECK, EventKind.INCIDENT})


class StreamEvent:
    """A change. `tenant_id` None: it is reported to all tenants."""

    __slots__ = ("_block", "data", "id", "kind", "tenant_id")

    def __init__(self, id_: UUID, kind: EventKind, tenant_id: UUID | None, data: dict[str, Any]) -> None:
        self.id = id_
        self.kind = kind
        self.tenant_id = tenant_id
        self.data = data
        self._block: bytes | None = None

    @property
    def block(self) -> bytes:
        """The server-sent event. It is encoded once, for all streams that send it."""
        if self._block is None:
            self._block = b"id: %b\nevent: %b\ndata: %b\n\n" % (str(self.id).encode(), self.kind.encode(), _encode(self.data))
        return self._block


class Subscriber(Protocol):
    """Receives the events of one tenant."""

    tenant_id: UUID

    def offer(self, event: StreamEvent) -> None:
        """Receive an event, perhaps of another tenant."""

    def add_lost(self, count: int) -> None:
        """Count events of the tenant that were lost before they reached this node."""

    def close(self) -> None:
        """End, because the server is shutting down."""


class _MessageEvent(msgspec.Struct, array_like=True):
    """An event in a message to other nodes."""

    id: UUID
    kind: EventKind
    tenant_id: UUID | None
    data: dict[str, Any]


class _Message(msgspec.Struct, omit_defaults=True):
    """A message to the other nodes. `wants`: the tenants for which the sender has subscribers; an empty list means all."""

    sender: UUID
    wants: list[UUID] | None = None
    events: list[_MessageEvent] = []
    lost: dict[UUID, int] = {}


_decode = msgspec.json.Decoder(_Message).decode


class EventSubscription:
    """The event queue of one client, until the client or the event stream closes it."""

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

    def add_lost(self, count: int) -> None:
        if self._lost or len(self._queue) >= self._size:
            self._lost += count
        else:
            self._queue.append(_lost_event(count))
        self._woken.set()

    def close(self) -> None:
        self.is_closed = True
        self._woken.set()

    async def take(self, timeout_seconds: float) -> list[StreamEvent]:
        """Return the queued events, or wait for one. Returns an empty list after the timeout or once closed."""
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
    """Distributes events to subscriptions: of all nodes if the store can send messages, otherwise of this process only."""

    def __init__(self, store: Store | None = None, *, monotonic: Monotonic = time.monotonic, size: int = QUEUE_SIZE) -> None:
        self._store = store
        self._monotonic = monotonic
        self._size = size
        self._id = uuid_utils.compat.uuid7()
        self._subscriptions: dict[Subscriber, None] = {}
        self._count_by_tenant: Counter[UUID] = Counter()
        self._remote_interest_until = float("-inf")
        self._remote_interest: dict[UUID | None, float] = {}
        self._outbox: deque[_MessageEvent] = deque()
        self._lost: Counter[UUID] = Counter()
        self._is_closed = False
        self.on_change: Callable[[], None] = _ignore_change
        self.receives_other_nodes = store is not None and store.event_stream_listen(self._on_message)

    @property
    def has_subscribers(self) -> bool:
        """Whether any node has a subscriber. Services check this before they create an event."""
        return bool(self._subscriptions) or self._monotonic() < self._remote_interest_until

    # Subscriptions

    def check_capacity(self, tenant_id: UUID) -> None:
        """Raise TooManyRequests if no more subscriptions are allowed.

        This is separate from `subscribe`, because a response can only be refused before it begins.
        """
        if self._is_closed or len(self._subscriptions) >= MAX_SUBSCRIBERS:
            raise TooManyRequests(f"this node serves at most {MAX_SUBSCRIBERS} event streams; try again later", _RETRY_SECONDS)
        if self._count_by_tenant[tenant_id] >= MAX_SUBSCRIBERS_PER_TENANT:
            message = f"a tenant may have at most {MAX_SUBSCRIBERS_PER_TENANT} event streams on a node; close one first"
            raise TooManyRequests(message, _RETRY_SECONDS)

    def subscribe(self, tenant_id: UUID, kinds: Iterable[EventKind] = PUBLISHED_KINDS) -> EventSubscription:
        subscription = EventSubscription(tenant_id, frozenset(kinds), self._size)
        self.add(subscription)
        return subscription

    def add(self, subscriber: Subscriber) -> None:
        """Send the events from now on to this subscriber too."""
        self._subscriptions[subscriber] = None
        self._count_by_tenant[subscriber.tenant_id] += 1
        if self._is_closed:
            subscriber.close()
        self.on_change()

    def unsubscribe(self, subscription: Subscriber) -> None:
        subscription.close()
        if self._subscriptions.pop(subscription, subscription) is None:
            self._count_by_tenant[subscription.tenant_id] -= 1

    def close(self) -> None:
        """End all streams, because the server is shutting down."""
        self._is_closed = True
        for subscription in list(self._subscriptions):
            subscription.close()

    # Publishing

    def publish(self, kind: EventKind, tenant_id: UUID | None, data: dict[str, Any], *, local_only: bool = False) -> None:
        event = StreamEvent(uuid_utils.compat.uuid7(), kind, tenant_id, data)
        self._offer(event)
        if local_only or not self._is_wanted_elsewhere(tenant_id):
            return
        if len(self._outbox) < _OUTBOX_SIZE:
            self._outbox.append(_MessageEvent(event.id, kind, tenant_id, data))
        elif tenant_id is not None:
            self._lost[tenant_id] += 1
        self.on_change()

    def publish_task(self, change: str, tenant_id: UUID, id_: UUID, **more: Any) -> None:
        """Publish a change of a task. `more`: further fields that the caller has without a query."""
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
        for subscription in self._subscriptions:
            subscription.offer(event)

    def _is_wanted_elsewhere(self, tenant_id: UUID | None) -> bool:
        now = self._monotonic()
        if now >= self._remote_interest_until:
            return False
        until = self._remote_interest
        return tenant_id is None or max(until.get(tenant_id, 0.0), until.get(None, 0.0)) > now

    # Between nodes

    def _on_message(self, text: str) -> None:
        try:
            message = _decode(text)
        except msgspec.MsgspecError:  # from a newer version or another program; it can be ignored, because events are hints
            return
        if message.sender == self._id:
            return
        if message.wants is not None:
            self._note_interest(message.wants)
        for one in message.events:
            self._offer(StreamEvent(one.id, one.kind, one.tenant_id, one.data))
        for tenant_id, count in message.lost.items():
            for subscription in self._subscriptions:
                if subscription.tenant_id == tenant_id:
                    subscription.add_lost(count)

    def _note_interest(self, tenants: Sequence[UUID]) -> None:
        now = self._monotonic()
        self._remote_interest_until = now + _INTEREST_LASTS_SECONDS
        self._remote_interest = {tenant: until for tenant, until in self._remote_interest.items() if until > now}
        for tenant in tenants or (None,):
            self._remote_interest[tenant] = self._remote_interest_until

    def next_message(self, *, with_interest: bool) -> str | None:
        """Return the next message to the other nodes, with as many events as fit. None if there is nothing to send."""
        wants = self._interest() if with_interest else None
        message = _Message(self._id, wants)
        size = len(_encode(message)) + 100
        while self._outbox:
            length = len(_encode(self._outbox[0])) + 1
            if size + length > MAX_MESSAGE_BYTES:
                break
            size += length
            message.events.append(self._outbox.popleft())
        # Each takes at most 60 bytes. Those that do not fit are sent with the next message.
        for tenant_id in list(self._lost)[: max(MAX_MESSAGE_BYTES - size, 0) // 60]:
            message.lost[tenant_id] = self._lost.pop(tenant_id)
        if wants is None and not message.events and not message.lost:
            return None
        return _encode(message).decode()

    def _interest(self) -> list[UUID] | None:
        tenants = [tenant for tenant, count in self._count_by_tenant.items() if count > 0]
        if not tenants:
            return None
        return tenants if len(tenants) <= _MAX_TENANTS_NAMED else []

    @property
    def has_more(self) -> bool:
        return bool(self._outbox or self._lost)

    @property
    def has_local_subscribers(self) -> bool:
        return bool(self._subscriptions)


class EventRelay(Periodic):
    """Sends the events of this node to the others, and every few seconds the tenants for which it has subscribers."""

    name = "relay"
    deadline_seconds = 30.0

    def __init__(self, store: Store, event_stream: EventStream, *, monotonic: Monotonic = time.monotonic) -> None:
        super().__init__(_INTEREST_SECONDS)
        self._store = store
        self._event_stream = event_stream
        self._monotonic = monotonic
        self._announced_at = float("-inf")
        self._had_subscribers = False
        event_stream.on_change = self.wake

    async def run_once(self, now: datetime | None = None) -> bool:
        has_local_subscribers = self._event_stream.has_local_subscribers
        is_new = has_local_subscribers and not self._had_subscribers
        with_interest = has_local_subscribers and (is_new or self._monotonic() - self._announced_at >= _INTEREST_SECONDS)
        self._had_subscribers = has_local_subscribers
        message = self._event_stream.next_message(with_interest=with_interest)
        if message is None:
            return False
        if with_interest:
            self._announced_at = self._monotonic()
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


def _ignore_change() -> None:
    """The default of `on_change`, for event streams without a relay."""

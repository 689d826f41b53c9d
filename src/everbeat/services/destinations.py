"""The destinations of a node: limits the tasks that the deliverer claims to those whose destination has capacity.

Tasks of a destination that is busy, held or unavailable stay ready, so that their attempts are not used up and other nodes can
deliver them. Each node observes the destinations by itself. Nothing is durable: a node that starts tries every destination.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from everbeat.clock import Monotonic
from everbeat.core.circuit_breakers import DEFAULT_POLICY, BreakerPolicy, BreakerState
from everbeat.core.destinations import (
    FIRST_WINDOW,
    DeliveryResult,
    Destination,
    DestinationKey,
    OpenDestination,
    destination_key,
)
from everbeat.core.fairness import ClaimStep
from everbeat.delivery.base import DestinationLimits
from everbeat.services.event_stream import EventKind, EventStream
from everbeat.services.events import CircuitBreakerChanged, Emit, ignore

_MAX_KEPT = 10_000
_MAX_REPORTED = 100
_ENDPOINT = "endpoint:"


class Destinations:
    """The destinations that this node has delivered to, and the slots that all of them share.

    `limits_of_kind` returns the default limits of a kind of target.
    """

    def __init__(
        self,
        slots: int,
        limits_of_kind: Callable[[str], DestinationLimits],
        *,
        policy: BreakerPolicy = DEFAULT_POLICY,
        monotonic: Monotonic = time.monotonic,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
    ) -> None:
        self._event_stream = event_stream or EventStream()
        self._slots = slots
        self._limits_of_kind = limits_of_kind
        self._policy = policy
        self._monotonic = monotonic
        self._emit = emit
        self._destinations: dict[DestinationKey, Destination] = {}
        # Claimed, but not begun yet.
        self._claimed: Counter[DestinationKey] = Counter()
        self._running = 0
        self._unproven = 0
        self._states: dict[DestinationKey, BreakerState] = {}
        # Endpoints whose limits have to be read before a task is claimed for them.
        self.unknown_endpoints: set[tuple[UUID, str]] = set()

    @property
    def free_slots(self) -> int:
        return self._slots - self._running

    # Limits of claims

    def limits(self, steps: Sequence[ClaimStep]) -> list[int]:
        now = self._monotonic()
        planned: Counter[DestinationKey] = Counter()
        unproven_slots = self._slots // 2 - self._unproven_now(now)
        allowed: list[int] = []
        for step in steps:
            key = destination_key(step.tenant_id, step.fair_key)
            if not self._is_known(step.tenant_id, step.fair_key, key):
                allowed.append(0)
                continue
            limit = min(step.limit, self._capacity(key, now) - planned[key])
            if not self._is_proven(key, now):
                limit = min(limit, unproven_slots)
                unproven_slots -= max(0, limit)
            planned[key] += max(0, limit)
            allowed.append(max(0, limit))
        return allowed

    def note_claimed(self, steps: Sequence[ClaimStep], counts: Sequence[int]) -> None:
        for step, count in zip(steps, counts, strict=True):
            if count:
                self._claimed[destination_key(step.tenant_id, step.fair_key)] += count

    def forget_claimed(self) -> None:
        """Forget claims after their deliveries have begun, or have failed to begin."""
        self._claimed.clear()

    def available(self, keys: Collection[tuple[UUID, str]]) -> set[str]:
        """Return the fair keys among these whose destination has capacity now."""
        now = self._monotonic()
        has_unproven_slots = self._unproven_now(now) < self._slots // 2
        available = set()
        for tenant_id, fair_key in keys:
            key = destination_key(tenant_id, fair_key)
            is_allowed = has_unproven_slots or self._is_proven(key, now)
            if is_allowed and self._is_known(tenant_id, fair_key, key) and self._capacity(key, now) > 0:
                available.add(fair_key)
        return available

    def next_capacity_seconds(self, keys: Collection[tuple[UUID, str]]) -> float | None:
        """Return in how many seconds the first of these destinations has capacity, if that depends on the time only."""
        now = self._monotonic()
        found = (self._destinations.get(destination_key(*key)) for key in keys)
        times = [at for one in found if one is not None and (at := one.next_capacity_at(now)) is not None]
        return max(0.0, min(times) - now) if times else None

    def _is_known(self, tenant_id: UUID, fair_key: str, key: DestinationKey) -> bool:
        if not fair_key.startswith(_ENDPOINT) or key in self._destinations:
            return True
        self.unknown_endpoints.add((tenant_id, fair_key.removeprefix(_ENDPOINT)))
        return False

    def _capacity(self, key: DestinationKey, now: float) -> int:
        destination = self._destinations.get(key)
        free, running = (FIRST_WINDOW, 0) if destination is None else (destination.capacity(now), destination.running)
        # One destination never takes all slots, and an unproven one only a small part of them.
        part = self._slots // 2 if self._is_proven(key, now) else self._slots // 16
        return min(free, max(1, part) - running) - self._claimed[key]

    def _is_proven(self, key: DestinationKey, now: float) -> bool:
        destination = self._destinations.get(key)
        return destination is not None and destination.is_proven and not destination.is_slow(now)

    def _unproven_now(self, now: float) -> int:
        """Return the number of slots that unproven destinations take now."""
        if self._running * 2 < self._slots:  # they cannot take half of the slots, so the number does not matter
            return 0
        return sum(one.running for key, one in self._destinations.items() if not self._is_proven(key, now))

    # Deliveries

    def begin(self, key: DestinationKey, kind: str, limits: DestinationLimits | None = None) -> None:
        destination = self._destinations.get(key)
        limits = limits or self._limits_of_kind(kind)
        if destination is None:
            self._prune()
            destination = self._destinations[key] = Destination(*limits, policy=self._policy)
        else:
            destination.set_limits(*limits)
        self._running += 1
        destination.begin(self._monotonic())

    def end(self, key: DestinationKey, result: DeliveryResult | None) -> None:
        destination = self._destinations[key]
        self._running -= 1
        destination.end(result, self._monotonic())
        self._publish_state(key, destination)

    def set_endpoint(self, tenant_id: UUID, name: str, limits: DestinationLimits) -> None:
        """Set the limits of an endpoint before the first task is claimed for it."""
        key = destination_key(tenant_id, f"{_ENDPOINT}{name}")
        destination = self._destinations.get(key)
        if destination is None:
            self._prune()
            self._destinations[key] = Destination(*limits, policy=self._policy)
        else:
            destination.set_limits(*limits)

    def _publish_state(self, key: DestinationKey, destination: Destination) -> None:
        now = self._monotonic()
        state, before = destination.breaker.state(now), self._states.get(key, BreakerState.CLOSED)
        if state is before:
            return
        if state is BreakerState.CLOSED:
            self._states.pop(key, None)
        else:
            self._states[key] = state
        open_seconds = max(0.0, destination.breaker.open_until - now)
        self._emit(CircuitBreakerChanged(key.tenant_id, key.name, state, open_seconds, len(self._states)))
        if self._event_stream.has_subscribers:
            data = {"change": "circuit_breaker", "destination": key.name, "state": state.value}
            self._event_stream.publish(EventKind.CLUSTER, key.tenant_id, data)

    def not_closed(self) -> list[OpenDestination]:
        """Return the destinations whose circuit breaker is open or half-open, up to a limit."""
        now = self._monotonic()
        return [
            OpenDestination(
                key.tenant_id,
                key.name,
                one.breaker.state(now),
                one.breaker.failures,
                round(max(0.0, one.breaker.open_until - now), 3),
            )
            for key in list(self._states)[:_MAX_REPORTED]
            if (one := self._destinations.get(key)) is not None and one.breaker.state(now) is not BreakerState.CLOSED
        ]

    def breaker_counts(self) -> dict[str, int]:
        """Return the number of destinations whose circuit breaker is open, and half-open."""
        now = self._monotonic()
        states = [self._destinations[key].breaker.state(now) for key in self._states if key in self._destinations]
        return {state.value: states.count(state) for state in (BreakerState.OPEN, BreakerState.HALF_OPEN)}

    def _prune(self) -> None:
        """Forget destinations about which nothing has to be remembered, before there are too many."""
        if len(self._destinations) < _MAX_KEPT or len(self._destinations) % 1000:
            return
        now = self._monotonic()
        self._destinations = {key: one for key, one in self._destinations.items() if not one.is_idle(now)}

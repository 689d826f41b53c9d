"""Destinations: how many deliveries to a host or a connection may begin now. Pure; the time is monotonic, and an argument.

A destination that has not proven itself starts with few concurrent deliveries. Every success allows one more, up to the limit,
and every failure halves the number. Therefore a destination that hangs takes few of the slots that all destinations share.
Unproven destinations together take at most half of the slots.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.circuit_breakers import (
    CLOSED,
    DEFAULT_POLICY,
    BreakerPolicy,
    BreakerState,
    CircuitBreaker,
    after_failure,
    after_success,
)

FIRST_WINDOW = 10
# The deliveries of a destination count as hanging if none has ended for this time.
SLOW_AFTER_SECONDS = 5.0


class DestinationKey(NamedTuple):
    """Identifies a destination. Broker connections are shared by all tenants (`tenant_id` None); hosts are not.

    Otherwise one tenant could open the circuit breaker of a host for the others.
    """

    tenant_id: UUID | None
    name: str


def destination_key(tenant_id: UUID, fair_key: str) -> DestinationKey:
    """Return the destination of a task from its fair key (core/targets.py, destination_of)."""
    return DestinationKey(None if fair_key.startswith("broker:") else tenant_id, fair_key)


class OpenDestination(msgspec.Struct, frozen=True):
    """A destination whose circuit breaker is not closed. `tenant_id` None: a broker connection, which all tenants share."""

    tenant_id: UUID | None
    destination: str
    state: BreakerState
    failures: int
    retry_in_seconds: float


class NodeDeliveries(msgspec.Struct, frozen=True):
    """The state of the deliverer of a node, as its heartbeats report it."""

    running: int
    circuit_breakers: list[OpenDestination] = []


class DeliveryResult(NamedTuple):
    """What a delivery says about its destination.

    `is_failure`: it counts as a failure of the destination. `hold_seconds`: the destination asked to get nothing for this time.
    """

    is_failure: bool = False
    hold_seconds: float = 0.0


class Destination:
    """The deliveries to one destination, and its circuit breaker."""

    def __init__(
        self, max_concurrent: int, rate_per_second: float | None = None, policy: BreakerPolicy = DEFAULT_POLICY
    ) -> None:
        self.policy = policy
        self.breaker: CircuitBreaker = CLOSED
        self.running = 0
        self.is_proven = False
        self.hold_until = 0.0
        self._window = float(FIRST_WINDOW)
        self._last_ended_at = 0.0
        self._tokens_at = 0.0
        self._tokens = 0.0
        self.max_concurrent = max_concurrent
        self.rate_per_second: float | None = None
        self.set_limits(max_concurrent, rate_per_second)

    def set_limits(self, max_concurrent: int, rate_per_second: float | None) -> None:
        """Set the limits, which a change of an endpoint may have changed."""
        if rate_per_second is not None and self.rate_per_second is None:
            self._tokens = max(1.0, rate_per_second)
        self.max_concurrent, self.rate_per_second = max_concurrent, rate_per_second

    def capacity(self, now: float) -> int:
        """Return how many deliveries may begin now."""
        state = self.breaker.state(now)
        if state is BreakerState.OPEN or now < self.hold_until:
            return 0
        if state is BreakerState.HALF_OPEN:
            return max(0, 1 - self.running)
        free = min(int(self._window), self.max_concurrent) - self.running
        if self.rate_per_second is not None:
            free = min(free, int(self._refilled(now)))
        return max(0, free)

    def next_capacity_at(self, now: float) -> float | None:
        """Return when the destination will have capacity without the end of a delivery. None: only such an end provides it."""
        at = max(self.hold_until, self.breaker.open_until)
        if at > now:
            return at
        if self.rate_per_second is not None and (missing := 1 - self._refilled(now)) > 0:
            return now + missing / self.rate_per_second
        return None

    def is_slow(self, now: float) -> bool:
        """Whether deliveries run, and none has ended for some time."""
        return self.running > 0 and now - self._last_ended_at > SLOW_AFTER_SECONDS

    def is_idle(self, now: float) -> bool:
        """Whether nothing about the destination has to be remembered."""
        return (
            self.running == 0
            and self.breaker.openings == 0
            and now >= self.hold_until
            and now - self._last_ended_at > 600
            and self.breaker.failures == 0
        )

    def begin(self, now: float) -> None:
        if self.running == 0:
            self._last_ended_at = now
        self.running += 1
        if self.rate_per_second is not None:
            self._tokens = self._refilled(now) - 1
            self._tokens_at = now

    def end(self, result: DeliveryResult | None, now: float) -> None:
        """Note the end of a delivery. None: it says nothing about the destination, for example because it was cancelled."""
        self.running -= 1
        self._last_ended_at = now
        if result is None:
            return
        self.hold_until = max(self.hold_until, now + result.hold_seconds)
        if result.is_failure:
            self.breaker = after_failure(self.breaker, self.policy, now)
            self.is_proven = False
            self._window = max(1.0, self._window / 2)
        else:
            self.breaker = after_success()
            self.is_proven = True
            self._window = min(self._window + 1, float(max(self.max_concurrent, FIRST_WINDOW)))

    def _refilled(self, now: float) -> float:
        """Return the tokens of the rate limit now. At most those of one second are saved up."""
        if self.rate_per_second is None:
            return 0.0
        saved = self._tokens + max(0.0, now - self._tokens_at) * self.rate_per_second
        return min(saved, max(1.0, self.rate_per_second))

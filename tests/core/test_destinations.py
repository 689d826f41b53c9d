from __future__ import annotations

from uuid import UUID

import pytest

from everbeat.core.circuit_breakers import BreakerPolicy, BreakerState
from everbeat.core.destinations import FIRST_WINDOW, SLOW_AFTER_SECONDS, DeliveryResult, Destination, destination_key
from tests.factories import OTHER_TENANT

SUCCESS, FAILURE = DeliveryResult(), DeliveryResult(is_failure=True)
POLICY = BreakerPolicy(failures=3, open_seconds=10, max_open_seconds=300)


def destination(max_concurrent: int = 100, rate_per_second: float | None = None) -> Destination:
    return Destination(max_concurrent, rate_per_second, POLICY)


def deliver(one: Destination, result: DeliveryResult | None, now: float, count: int = 1) -> None:
    for _ in range(count):
        one.begin(now)
        one.end(result, now)


def test_hosts_belong_to_a_tenant_and_connections_to_all() -> None:
    assert destination_key(OTHER_TENANT, "example.com").tenant_id == OTHER_TENANT
    assert destination_key(UUID(int=1), "broker:main") == destination_key(UUID(int=2), "broker:main")


def test_successes_raise_the_concurrency_up_to_the_limit() -> None:
    one = destination(max_concurrent=15)
    assert one.capacity(0) == FIRST_WINDOW
    deliver(one, SUCCESS, 0, count=50)
    assert one.capacity(0) == 15


def test_failures_halve_the_concurrency() -> None:
    one = destination()
    deliver(one, SUCCESS, 0, count=10)
    before = one.capacity(0)
    deliver(one, FAILURE, 0)
    assert one.capacity(0) == before // 2
    assert not one.is_proven


def test_an_open_breaker_leaves_no_capacity_and_a_half_open_one_a_single_delivery() -> None:
    one = destination()
    deliver(one, FAILURE, 0, count=3)
    assert (one.capacity(5), one.next_capacity_at(5)) == (0, 10)
    assert one.breaker.state(10) is BreakerState.HALF_OPEN
    assert one.capacity(10) == 1
    one.begin(10)
    assert one.capacity(10) == 0
    one.end(SUCCESS, 11)
    assert one.breaker.state(11) is BreakerState.CLOSED
    assert one.capacity(11) > 1


def test_a_cancelled_delivery_says_nothing_about_the_destination() -> None:
    one = destination()
    deliver(one, FAILURE, 0, count=2)
    deliver(one, None, 0)
    assert one.breaker.failures == 2


def test_it_waits_for_as_long_as_the_destination_has_asked() -> None:
    one = destination()
    deliver(one, DeliveryResult(is_failure=False, hold_seconds=30), 100)
    assert (one.capacity(129), one.next_capacity_at(129), one.capacity(130)) == (0, 130, FIRST_WINDOW + 1)


@pytest.mark.parametrize(("rate", "first", "after_a_second"), [(2, 2, 2), (0.5, 1, 0), (100, FIRST_WINDOW, 12)])
def test_a_rate_limits_how_many_deliveries_begin(rate: float, first: int, after_a_second: int) -> None:
    one = destination(rate_per_second=rate)
    begun = 0
    while one.capacity(0) and begun < 20:
        one.begin(0)
        begun += 1
    assert begun == first
    for _ in range(begun):
        one.end(SUCCESS, 0.0)
    begun = 0
    while one.capacity(1) and begun < 12:
        one.begin(1)
        begun += 1
    assert begun == after_a_second


def test_a_rate_says_when_the_next_delivery_may_begin() -> None:
    one = destination(rate_per_second=0.5)
    deliver(one, SUCCESS, 10)
    assert one.capacity(10) == 0
    assert one.next_capacity_at(10) == pytest.approx(12)
    assert one.capacity(12.001) == 1


def test_it_is_slow_if_deliveries_run_and_none_has_ended_for_a_while() -> None:
    one = destination()
    one.begin(0)
    assert not one.is_slow(SLOW_AFTER_SECONDS)
    assert one.is_slow(SLOW_AFTER_SECONDS + 0.1)
    one.end(SUCCESS, 20)
    one.begin(100)
    assert not one.is_slow(101)


def test_only_a_destination_without_anything_to_remember_is_idle() -> None:
    one = destination()
    deliver(one, SUCCESS, 0)
    assert not one.is_idle(10)
    assert one.is_idle(1000)
    deliver(one, FAILURE, 1000)
    assert not one.is_idle(3000)

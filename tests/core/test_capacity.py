"""A node that fires late gives partitions away, takes them back after a cool-down, and does not flap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.capacity import CAPACITIES, CapacityState, NodeLoad, keeps_up, next_capacity
from everbeat.core.firing_lag import FiringLag

LEASE, STEP = 9.0, 3.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def after(state: CapacityState, seconds: float, *, is_behind: bool, others_keep_up: bool = True) -> CapacityState:
    """The state after heartbeats every three seconds."""
    for _ in range(round(seconds / STEP)):
        state = next_capacity(
            state, elapsed_seconds=STEP, is_behind=is_behind, lease_seconds=LEASE, others_keep_up=others_keep_up
        )
    return state


def test_a_node_keeps_its_capacity_while_it_is_behind_for_up_to_a_lease() -> None:
    assert after(CapacityState(), LEASE, is_behind=True).capacity == 1


def test_a_node_that_stays_behind_goes_down_step_by_step() -> None:
    states = [after(CapacityState(), LEASE * leases + STEP * leases, is_behind=True) for leases in (1, 2, 3)]
    assert [state.capacity for state in states] == [0.25, 0.0, 0.0]


def test_a_node_does_not_give_partitions_away_while_no_other_keeps_up() -> None:
    state = after(CapacityState(), 100 * LEASE, is_behind=True, others_keep_up=False)
    assert state.capacity == 1
    assert after(state, STEP, is_behind=True).capacity == 0.25


def test_a_node_that_was_slow_with_all_others_counts_as_steady_soon_after() -> None:
    state = after(CapacityState(), 100 * LEASE, is_behind=True, others_keep_up=False)
    state = after(state, 4 * LEASE, is_behind=False)
    assert after(state, LEASE, is_behind=True).capacity == 1


def test_a_lag_in_every_second_heartbeat_counts_in_the_end() -> None:
    state, seconds = CapacityState(), 0.0
    while state.capacity == 1:
        state = after(after(state, STEP, is_behind=True), STEP, is_behind=False)
        seconds += 2 * STEP
    assert LEASE < seconds < 6 * LEASE


def test_a_short_lag_each_minute_does_not_count() -> None:
    state = CapacityState()
    for _ in range(60):
        state = after(after(state, 9, is_behind=True), 51, is_behind=False)
    assert state.capacity == 1


def test_a_node_takes_partitions_back_after_a_cool_down() -> None:
    state = after(CapacityState(), 24, is_behind=True)
    assert state.capacity == 0
    state = after(state, 6 * LEASE, is_behind=False)
    assert state.capacity == 0.25
    assert after(state, 5 * LEASE, is_behind=False).capacity == 0.25
    assert after(state, 6 * LEASE, is_behind=False).capacity == 1


def test_the_cool_down_doubles_if_the_node_falls_behind_again_up_to_a_limit() -> None:
    state, cool_downs = CapacityState(), []
    for _ in range(6):
        state = after(state, 24, is_behind=True)
        cool_downs.append(state.cool_down_leases)
        while state.capacity == 0:
            state = after(state, STEP, is_behind=False)
    assert cool_downs == [6, 12, 24, 48, 64, 64]


def test_a_node_that_holds_its_full_capacity_starts_with_the_first_cool_down() -> None:
    state = after(CapacityState(), 24, is_behind=True)._replace(cool_down_leases=12)
    state = after(state, 2 * 12 * LEASE, is_behind=False)
    assert (state.capacity, state.cool_down_leases, state.is_raised) == (1, 12, True)
    assert after(state, 12 * LEASE, is_behind=False) == CapacityState()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=100, max_size=400))
def test_capacity_changes_by_one_step_and_at_most_once_in_a_lease(heartbeats: list[tuple[bool, bool]]) -> None:
    state, since = CapacityState(), LEASE
    for is_behind, others in heartbeats:
        before = state
        state = next_capacity(state, elapsed_seconds=STEP, is_behind=is_behind, lease_seconds=LEASE, others_keep_up=others)
        since += STEP
        if state.step != before.step:
            assert abs(state.step - before.step) == 1
            assert since > LEASE
            since = 0.0
        assert state.capacity in CAPACITIES


def test_a_node_keeps_up_with_its_full_capacity_and_half_of_the_allowed_lag() -> None:
    assert keeps_up(NodeLoad(1.0, None), 2)
    assert keeps_up(NodeLoad(1.0, 0.9), 2)
    assert not keeps_up(NodeLoad(1.0, 1.0), 2)
    assert not keeps_up(NodeLoad(0.25, 0.0), 2)


def test_the_lag_is_the_worst_since_the_last_call() -> None:
    lag = FiringLag()
    assert lag.take(NOW) is None
    lag.note_due(NOW)
    lag.note_fired(NOW + timedelta(seconds=3))
    lag.note_due(NOW + timedelta(seconds=3))
    lag.note_fired(NOW + timedelta(seconds=4))
    assert lag.take(NOW + timedelta(seconds=10)) == 3
    assert lag.take(NOW + timedelta(seconds=10)) == 0


def test_what_is_due_and_has_not_fired_counts_as_lag_in_every_call() -> None:
    lag = FiringLag()
    lag.note_due(NOW)
    assert lag.take(NOW + timedelta(seconds=5)) == 5
    lag.note_due(NOW + timedelta(seconds=6))  # the first batch has failed
    assert lag.take(NOW + timedelta(seconds=8)) == 8
    lag.clear()
    assert lag.take(NOW + timedelta(seconds=9)) == 0

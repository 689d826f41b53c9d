"""When a node that fires late gives partitions to nodes that keep up, and when it takes them back.

Each heartbeat of a node says whether the node has been behind since the previous one. The time for which it was behind is
added up, and half of the time for which it was not is subtracted. A node that is behind for longer than a lease lowers its
capacity by one step, but only if another node keeps up: if all are slow, moving them does not help. It raises its capacity
by one step after a cool-down without being behind. If it falls behind again after that, the next cool-down is twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CAPACITIES = (1.0, 0.25, 0.0)
FIRST_COOL_DOWN_LEASES, MAX_COOL_DOWN_LEASES = 6, 64


class CapacityState(NamedTuple):
    """The state of the decision. `is_raised`: the capacity was raised, and has not held for a cool-down since."""

    step: int = 0
    behind_seconds: float = 0.0
    steady_seconds: float = 0.0
    cool_down_leases: int = FIRST_COOL_DOWN_LEASES
    is_raised: bool = False

    @property
    def capacity(self) -> float:
        return CAPACITIES[self.step]


class NodeLoad(NamedTuple):
    """What a live node has reported with its last heartbeat."""

    capacity: float
    lag_seconds: float | None


def keeps_up(load: NodeLoad, behind_after_seconds: float) -> bool:
    """Return whether a node can take partitions of another one."""
    return load.capacity == CAPACITIES[0] and (load.lag_seconds or 0.0) < behind_after_seconds / 2


def any_keeps_up(others: Iterable[NodeLoad], behind_after_seconds: float) -> bool:
    return any(keeps_up(load, behind_after_seconds) for load in others)


def next_capacity(
    state: CapacityState, *, elapsed_seconds: float, is_behind: bool, lease_seconds: float, others_keep_up: bool
) -> CapacityState:
    """Return the state after a heartbeat, `elapsed_seconds` after the previous one."""
    # Limited, so that a node that could not give partitions away for hours does not need as long to be regarded as steady.
    behind = (
        min(state.behind_seconds + elapsed_seconds, 2 * lease_seconds)
        if is_behind
        else max(0.0, state.behind_seconds - elapsed_seconds / 2)
    )
    steady = 0.0 if is_behind else state.steady_seconds + elapsed_seconds
    state = state._replace(behind_seconds=behind, steady_seconds=steady)
    if is_behind and behind > lease_seconds and others_keep_up and state.step < len(CAPACITIES) - 1:
        cool_down = min(2 * state.cool_down_leases, MAX_COOL_DOWN_LEASES) if state.is_raised else state.cool_down_leases
        return CapacityState(step=state.step + 1, cool_down_leases=cool_down)
    if steady < state.cool_down_leases * lease_seconds:
        return state
    if state.step > 0:
        return CapacityState(step=state.step - 1, cool_down_leases=state.cool_down_leases, is_raised=True)
    return CapacityState()

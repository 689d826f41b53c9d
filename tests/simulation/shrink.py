"""Shrinks a failing plan: removes entries as long as the same invariant fails (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.simulation.plan import Entry, Plan
from tests.simulation.run import Outcome, run_plan
from tests.simulation.virtual_time import real_perf_counter


def shrink(
    plan: Plan, outcome: Outcome, *, seconds: float, max_runs: int, note: Callable[[Plan], None]
) -> tuple[Plan, Outcome]:
    """Return the smallest plan found that violates the same invariant. `note` is called with each smaller plan."""
    return _Shrinker(plan, outcome, real_perf_counter() + seconds, max_runs, note).shrink()


class _Shrinker:
    def __init__(self, plan: Plan, outcome: Outcome, until: float, max_runs: int, note: Callable[[Plan], None]) -> None:
        self._plan, self._outcome = plan, outcome
        self._until, self._runs_left = until, max_runs
        self._note = note

    def shrink(self) -> tuple[Plan, Outcome]:
        at = self._outcome.at_seconds
        self._try([entry for entry in self._plan.entries if entry.at <= at], min(self._plan.seconds, at))
        size = max(1, len(self._plan.entries) // 2)
        while size >= 1 and not self._is_over():
            has_removed = self._remove_chunks(size)
            if size == 1 and not has_removed:
                break
            size = max(1, size // 2) if size > 1 or has_removed else 0
        return self._plan, self._outcome

    def _remove_chunks(self, size: int) -> bool:
        """Try to remove each chunk of this size, the last one first."""
        has_removed = False
        start = len(self._plan.entries) - size
        while start > -size and not self._is_over():
            entries = self._plan.entries
            kept = entries[: max(0, start)] + entries[max(0, start) + size :]
            if len(kept) < len(entries) and self._try(kept, self._plan.seconds):
                has_removed = True
            start -= size
        return has_removed

    def _try(self, entries: list[Entry], seconds: float) -> bool:
        plan = msgspec.structs.replace(self._plan, entries=entries, seconds=seconds)
        self._runs_left -= 1
        outcome = run_plan(plan)
        if outcome.invariant != self._outcome.invariant:
            return False
        self._plan, self._outcome = plan, outcome
        self._note(plan)
        return True

    def _is_over(self) -> bool:
        return self._runs_left <= 0 or real_perf_counter() >= self._until

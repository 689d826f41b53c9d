"""Jitter is stable, bounded and evenly spread."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.jitter import jitter_of


def test_no_jitter_is_no_delay() -> None:
    assert jitter_of(UUID(int=7), 0) == timedelta(0)


def test_the_delay_of_an_id_never_changes_between_releases() -> None:
    assert jitter_of(UUID("01890a5d-ac96-774b-bcce-b302099a8057"), 60) == timedelta(microseconds=12_598_802)


@given(st.uuids(), st.floats(min_value=0, max_value=86400 * 365))
def test_the_delay_is_within_the_span(schedule_id: UUID, jitter_seconds: float) -> None:
    delay = jitter_of(schedule_id, jitter_seconds)
    assert delay == jitter_of(schedule_id, jitter_seconds)
    assert timedelta(0) <= delay
    assert delay < timedelta(seconds=jitter_seconds) or delay == timedelta(0)


def test_delays_are_spread_evenly_even_for_adjacent_ids() -> None:
    base = UUID("01890a5d-ac96-774b-bcce-b302099a8057").int
    tenths = [0] * 10
    for step in range(10_000):
        tenths[int(jitter_of(UUID(int=base + step), 10) / timedelta(seconds=1))] += 1
    assert min(tenths) > 850
    assert max(tenths) < 1150


def test_the_delay_grows_with_the_span() -> None:
    one, two = jitter_of(UUID(int=7), 10), jitter_of(UUID(int=7), 20)
    assert two / timedelta(seconds=1) == pytest.approx(2 * (one / timedelta(seconds=1)), abs=1e-5)

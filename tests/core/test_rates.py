"""A rate with a burst admits what it specifies, in the short and in the long run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.rates import Rate, admit


@given(
    st.floats(0.1, 10_000),
    st.integers(1, 50),
    st.lists(st.floats(0, 1), min_size=1, max_size=200),
)
def test_never_more_than_the_burst_plus_the_rate_is_admitted(per_second: float, burst: int, gaps: list[float]) -> None:
    rate, full_at, now, admitted = Rate(per_second, burst), 0.0, 0.0, 0
    for gap in gaps:
        now += gap / per_second
        full_at, wait = admit(rate, full_at, now)
        admitted += not wait
        assert admitted <= burst + now * per_second + 1e-3
        if wait:
            assert not admit(rate, full_at, now + wait + 1e-6).wait_seconds, "after the returned time, it is admitted"


def test_a_burst_is_admitted_immediately_and_then_single_requests() -> None:
    rate, full_at = Rate(10, 5), 0.0
    for _ in range(5):
        full_at, wait = admit(rate, full_at, 100.0)
        assert wait == 0
    assert 0.09 < admit(rate, full_at, 100.0).wait_seconds < 0.11
    assert admit(rate, full_at, 100.11).wait_seconds == 0

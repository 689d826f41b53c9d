"""The durations of database calls: means over the last minutes, and what was slow before is forgotten."""

from __future__ import annotations

from everbeat.services.call_times import CallTimes


def test_it_keeps_means_and_forgets_after_two_windows() -> None:
    now = 0.0
    times = CallTimes(monotonic=lambda: now)
    for seconds in (0.1, 0.3):
        times.observe("claim", seconds)
    times.observe("fire", 0.05)
    assert [(one.verb, one.calls, round(one.mean_seconds, 6), one.max_seconds) for one in times.slowest()] == [
        ("claim", 2, 0.2, 0.3),
        ("fire", 1, 0.05, 0.05),
    ]
    now = 301.0
    times.observe("claim", 0.5)
    (claim, _) = times.slowest()
    assert (claim.calls, round(claim.mean_seconds, 6), claim.max_seconds) == (3, 0.3, 0.5)
    now = 602.0
    times.observe("fire", 0.01)
    assert [(one.verb, one.calls) for one in times.slowest()] == [("claim", 1), ("fire", 1)]
    now = 2000.0
    times.observe("fire", 0.01)
    assert [one.verb for one in times.slowest(1)] == ["fire"]

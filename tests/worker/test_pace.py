"""How much is claimed ahead: much of short tasks, nothing of long ones."""

from __future__ import annotations

from everbeat.core.protocol import MAX_CLAIMED
from everbeat.worker.pace import MOST_AHEAD, Pace


def worked(pace: Pace, *, finished: int, seconds: float, in_hand: int, timeout: float = 60.0) -> None:
    pace.received(timeout, 0.0)
    for _ in range(finished):
        pace.finished()
    pace.sample(in_hand, seconds)


def test_the_first_claim_fills_the_slots() -> None:
    assert Pace(50, 30).to_claim(0) == 50


def test_short_tasks_are_claimed_far_ahead() -> None:
    pace = Pace(50, 30)
    worked(pace, finished=1000, seconds=0.05, in_hand=50)
    assert pace.ahead == MOST_AHEAD
    assert pace.to_claim(50) == MAX_CLAIMED
    assert pace.to_claim(549) == 501
    assert pace.to_claim(551) == 0


def test_long_tasks_are_claimed_only_for_free_slots() -> None:
    pace = Pace(50, 30)
    worked(pace, finished=50, seconds=2.0, in_hand=50)
    assert pace.ahead == 0
    assert [pace.to_claim(count) for count in (50, 49, 0)] == [0, 1, 50]


def test_between_them_little_is_claimed_ahead_so_that_who_comes_next_waits_little() -> None:
    pace = Pace(50, 30)
    worked(pace, finished=500, seconds=1.0, in_hand=50)
    assert pace.ahead == 10


def test_tasks_becoming_long_are_noticed() -> None:
    pace = Pace(50, 30)
    worked(pace, finished=1000, seconds=0.05, in_hand=50)
    now = 0.05
    for _ in range(12):
        now += 0.25
        pace.sample(1050, now)
    assert pace.ahead == 0
    worked(pace, finished=10_000, seconds=now + 0.25, in_hand=50)
    pace.stalled()
    assert pace.ahead == 0


def test_missing_work_does_not_look_like_slow_tasks() -> None:
    pace = Pace(50, 30)
    worked(pace, finished=1000, seconds=0.05, in_hand=0)
    pace.received(60.0, 10.0)
    pace.finished()
    pace.sample(1, 11.0)
    assert pace.ahead == MOST_AHEAD


def test_short_timeouts_are_not_used_up_by_waiting() -> None:
    pace = Pace(50, 30)
    worked(pace, finished=1000, seconds=0.1, in_hand=50, timeout=0.1)
    assert pace.ahead == 100


def test_waiting_stays_far_below_the_lease() -> None:
    assert Pace(50, 5).longest_wait_seconds == 0.5
    assert Pace(50, 3600).longest_wait_seconds == 1.0

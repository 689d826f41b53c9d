"""Prefetch: many short tasks are claimed ahead, and no long ones."""

from __future__ import annotations

from everbeat.core.protocol import MAX_CLAIMED
from everbeat.worker.prefetch import MAX_PREFETCH, Prefetch


def finish_tasks(prefetch: Prefetch, *, finished: int, seconds: float, task_count: int, timeout: float = 60.0) -> None:
    prefetch.received(timeout, 0.0)
    for _ in range(finished):
        prefetch.finished()
    prefetch.sample(task_count, seconds)


def test_the_first_claim_fills_the_slots() -> None:
    assert Prefetch(50, 30).to_claim(0) == 50


def test_many_short_tasks_are_claimed_ahead() -> None:
    prefetch = Prefetch(50, 30)
    finish_tasks(prefetch, finished=1000, seconds=0.05, task_count=50)
    assert prefetch.prefetch_count == MAX_PREFETCH
    assert prefetch.to_claim(50) == MAX_CLAIMED
    assert prefetch.to_claim(549) == 501
    assert prefetch.to_claim(551) == 0


def test_long_tasks_are_claimed_only_for_free_slots() -> None:
    prefetch = Prefetch(50, 30)
    finish_tasks(prefetch, finished=50, seconds=2.0, task_count=50)
    assert prefetch.prefetch_count == 0
    assert [prefetch.to_claim(count) for count in (50, 49, 0)] == [0, 1, 50]


def test_few_tasks_of_medium_length_are_claimed_ahead() -> None:
    prefetch = Prefetch(50, 30)
    finish_tasks(prefetch, finished=500, seconds=1.0, task_count=50)
    assert prefetch.prefetch_count == 10


def test_prefetch_adapts_when_tasks_become_long() -> None:
    prefetch = Prefetch(50, 30)
    finish_tasks(prefetch, finished=1000, seconds=0.05, task_count=50)
    now = 0.05
    for _ in range(12):
        now += 0.25
        prefetch.sample(1050, now)
    assert prefetch.prefetch_count == 0
    finish_tasks(prefetch, finished=10_000, seconds=now + 0.25, task_count=50)
    prefetch.stalled()
    assert prefetch.prefetch_count == 0


def test_a_lack_of_tasks_does_not_count_as_slow_tasks() -> None:
    prefetch = Prefetch(50, 30)
    finish_tasks(prefetch, finished=1000, seconds=0.05, task_count=0)
    prefetch.received(60.0, 10.0)
    prefetch.finished()
    prefetch.sample(1, 11.0)
    assert prefetch.prefetch_count == MAX_PREFETCH


def test_prefetched_tasks_do_not_use_up_short_timeouts() -> None:
    prefetch = Prefetch(50, 30)
    finish_tasks(prefetch, finished=1000, seconds=0.1, task_count=50, timeout=0.1)
    assert prefetch.prefetch_count == 100


def test_the_waiting_time_stays_far_below_the_lease() -> None:
    assert Prefetch(50, 5).max_wait_seconds == 0.5
    assert Prefetch(50, 3600).max_wait_seconds == 1.0

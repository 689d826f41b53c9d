"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from everbeat.client.durations import seconds_of
from everbeat.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90),
        (0, 0),
        (1.5, 1.5),
        (timedelta(minutes=2), 120),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("250ms", 0.25),
        (" 1H 30M ", 5400),
        ("1.5h", 5400),
        ("0s", 0),
    ],
)
def test_it_reads_a_duration(written: Any, seconds: float) -> None:
    assert seconds_of(written, "delay") == seconds


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "not a duration"),
        ("10", 'write "10s" for seconds'),
        ("ten minutes", "not a duration"),
        ("-5m", "not a duration"),
        (-1, "is negative or not finite"),
        (timedelta(seconds=-1), "is negative or not finite"),
        (float("nan"), "is negative or not finite"),
        (float("inf"), "is negative or not finite"),
        ("30m1h", "the longest first"),
        ("1h1h", "each unit once"),
        (True, "not a duration"),
        (None, "not a duration"),
    ],
)
def test_it_refuses_an_invalid_duration_and_names_the_field(written: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=r"^delay: ") as refused:
        seconds_of(written, "delay")
    assert message in str(refused.value)

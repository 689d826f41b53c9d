"""How the pages write values, and which page a path of the API belongs to."""

from __future__ import annotations

import pytest

from everbeat.web.formats import duration, filters_of, page_link


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ("/v1/tasks/5", "/tasks/5"),
        ("/v1/schedules/nightly/ticks?from=x", "/schedules/nightly"),
        ("/v1/queues", "/queues"),
        ("/v1/pauses", "/queues"),
        ("/v1/audit-log?action=schedule.update", "/audit-log"),
        ("/v1/unknown", None),
        ("//evil.example", None),
        (None, None),
    ],
)
def test_a_path_of_the_api_leads_to_its_page(link: str | None, page: str | None) -> None:
    assert page_link(link) == page


def test_durations_have_at_most_two_units() -> None:
    assert [duration(one) for one in (None, 0.34, 5, 65, 3700, 90_000)] == [
        "—",
        "340 ms",
        "5.0 s",
        "1 min 5 s",
        "1 h 1 min",
        "1 d 1 h",
    ]


def test_the_parameters_of_a_list_are_passed_on_without_its_cursor() -> None:
    assert filters_of("queue=a&cursor=xyz&state=dead") == "&queue=a&state=dead"
    assert filters_of("") == ""

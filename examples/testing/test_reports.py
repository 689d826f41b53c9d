"""Tests of an app: tasks run inline, and the test advances the clock and checks the results. Run them with pytest."""

import asyncio
from collections.abc import Iterator

import pytest
import reports
from reports import build_report, eb, nightly, remind

from everbeat.testing import Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    reports.SENT.clear()
    with Harness(eb, now="2026-03-06T00:00:00Z") as harness:
        yield harness


def test_a_handler_is_a_plain_function() -> None:
    remind(user="ann", text="call back")
    assert reports.SENT[-1] == "ann: call back"


def test_a_report_counts_the_lines_of_its_account(harness: Harness) -> None:
    handle = build_report.submit(account=7)
    harness.run_due()
    assert handle.wait() == {"account": 7, "lines": 2}


def test_an_unknown_account_is_not_retried(harness: Harness) -> None:
    build_report.submit(account=99)
    (run,) = harness.run_due()
    assert run.state == "dead"
    assert str(run.error) == "there is no account 99"


def test_every_night_all_reports_are_built(harness: Harness) -> None:
    harness.advance("2d")
    assert [run.scheduled_for.isoformat() for run in harness.runs_of(nightly)] == [
        "2026-03-06T07:00:00+00:00",
        "2026-03-07T07:00:00+00:00",
    ]
    assert len(harness.runs_of(build_report)) == 2 * len(reports.ACCOUNTS)
    assert harness.failed == []


def test_a_reminder_is_sent_when_it_is_due(harness: Harness) -> None:
    remind.options(delay="30m").submit(user="ann", text="call back")
    harness.advance("29m")
    assert reports.SENT == []
    harness.advance("1m")
    assert reports.SENT == ["ann: call back"]


def test_a_reminder_is_retried_while_the_mail_server_is_down(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    outages = iter([ConnectionError("unavailable"), ConnectionError("unavailable")])

    def unreliable(user: str, text: str) -> None:
        if error := next(outages, None):
            raise error
        reports.SENT.append(text)

    monkeypatch.setattr(reports, "deliver", unreliable)
    remind.submit(user="ann", text="call back")
    harness.advance("5m")
    assert [run.state for run in harness.runs_of(remind)] == ["retry", "retry", "completed"]
    assert [run.at.isoformat()[11:19] for run in harness.runs] == ["00:00:00", "00:00:30", "00:01:00"]


def test_async_code_uses_the_async_methods(harness: Harness) -> None:
    async def submit_and_run() -> None:
        await build_report.submit_async(account=8)
        (run,) = await harness.run_due_async()
        assert run.result == {"account": 8, "lines": 0}

    asyncio.run(submit_and_run())  # with pytest-asyncio, write an async test instead


def test_a_night_missed_during_an_outage_is_caught_up(harness: Harness) -> None:
    harness.clock.move_to("2026-03-06T06:30:00Z")
    harness.run_due()
    harness.outage("1h")
    harness.run_due()
    assert len(harness.runs_of(nightly)) == 1

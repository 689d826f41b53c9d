"""Why a check has its state, or what became of the ping that was expected at an instant: a verdict, a sentence and facts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, assert_never

from everbeat.core.check_ledger import CheckLedgerEntry
from everbeat.core.checks import Check, CheckStatus, DownReason, Ping, PingKind
from everbeat.core.definitions import number, optional_rfc3339, rfc3339
from everbeat.core.describe import describe
from everbeat.core.task_explanations import Fact


class CheckVerdict(StrEnum):
    """The state of a check, or what became of an expected ping. A closed list: adding a verdict changes the API contract."""

    NEW = "new"
    UP = "up"
    STARTED = "started"
    LATE = "late"
    DOWN = "down"
    PAUSED = "paused"
    PINGED = "pinged"
    FAILED = "failed"
    MISSED = "missed"
    SKIPPED = "skipped"
    UPCOMING = "upcoming"
    NOT_EXPECTED = "not_expected"


class CheckExplanation(NamedTuple):
    verdict: CheckVerdict
    explanation: str
    facts: list[Fact]


def explain_state(check: Check, last: Ping | None, now: datetime) -> CheckExplanation:
    """Explain the present state. `last`: the newest ping that was not a log message."""
    status = check.status_at(now)
    return CheckExplanation(CheckVerdict(status.value), _state_text(check, status, last, now), _facts(check, last))


def explain_instant(
    check: Check, at: datetime, entry: CheckLedgerEntry | None, nearby: Sequence[CheckLedgerEntry], last: Ping | None
) -> CheckExplanation:
    """Explain an instant. `entry`: the ledger entry that contains it. `nearby`: entries around it."""
    facts = _facts(check, last)
    if entry is None:
        facts += [Fact("nearest_expected", rfc3339(one.scheduled_for)) for one in nearby]
        text = f"No ping was expected at {rfc3339(at)}."
        if at < check.created_at:
            text = f"The check was created at {rfc3339(check.created_at)}, so no ping was expected before."
        return CheckExplanation(CheckVerdict.NOT_EXPECTED, text, facts)
    facts.append(Fact("scheduled_for", rfc3339(entry.scheduled_for)))
    if entry.until is not None:
        facts += [Fact("until", rfc3339(entry.until)), Fact("count", entry.count)]
    if entry.pinged_at is not None:
        facts += [Fact("pinged_at", rfc3339(entry.pinged_at)), Fact("lag_ms", entry.lag_ms)]
    if entry.ping_number is not None:
        link = f"/v1/checks/{check.spec.name}/pings"
        facts.append(Fact("ping", entry.ping_number, link))
    return CheckExplanation(CheckVerdict(entry.outcome), _entry_text(check, entry), facts)


def _state_text(check: Check, status: CheckStatus, last: Ping | None, now: datetime) -> str:
    position, since = check.position, rfc3339(check.position.state_since)
    match status:
        case CheckStatus.NEW:
            if position.expected_at is None:
                return "The check has had no ping yet. It waits for the first one without a deadline."
            return f"The check was resumed at {since}, and has had no ping since. It goes down at {_time(position.due_at)}."
        case CheckStatus.UP:
            return f"The last ping arrived at {_time(position.last_ping_at)}. The next one is expected at {_next(check)}."
        case CheckStatus.STARTED:
            started = rfc3339(min(run.started_at for run in position.runs))
            return f"A run started at {started} and has not ended. The check goes down at {_time(position.due_at)}."
        case CheckStatus.LATE:
            return f"A ping was expected at {_time(position.expected_at)}. The check goes down at {_time(position.due_at)}."
        case CheckStatus.PAUSED:
            return f"The check is paused since {since}. Pings are recorded, and none is expected."
        case CheckStatus.DOWN:
            return f"The check is down since {since}: {_reason_text(check, last)}"
        case _:
            assert_never(status)


def _reason_text(check: Check, last: Ping | None) -> str:
    seconds = number(check.spec.grace_seconds)
    match check.position.reason:
        case DownReason.FAILED:
            status = (
                ""
                if last is None or last.exit_status is None or last.kind is not PingKind.FAIL
                else (f" with exit status {last.exit_status}")
            )
            return f"the job reported a failure{status}."
        case DownReason.UNFINISHED:
            limit = number(check.spec.run_limit.total_seconds())
            return f"a run started, and did not report its end within {limit} seconds."
        case _:
            return f"no ping arrived within {seconds} seconds after it was expected. It comes up with the next success."


def _entry_text(check: Check, entry: CheckLedgerEntry) -> str:
    expected = f"A ping was expected at {rfc3339(entry.scheduled_for)}"
    if entry.until is not None:
        expected = f"{entry.count} pings were expected from {rfc3339(entry.scheduled_for)} to {rfc3339(entry.until)}"
    match entry.outcome:
        case "pinged":
            return f"{expected}. The success at {_time(entry.pinged_at)} answered it."
        case "failed":
            return f"{expected}. The job reported a failure at {_time(entry.pinged_at)}."
        case "missed":
            if entry.reason == "unfinished":
                return f"{expected}. A run started, and did not report its end in time."
            return f"{expected}, and none arrived within {number(check.spec.grace_seconds)} seconds."
        case "skipped":
            return f"{expected} by the rule, but the check was paused."
        case "late":
            return f"{expected} and has not arrived yet."
        case "upcoming":
            return f"A ping will be expected at {rfc3339(entry.scheduled_for)}."
        case _:
            assert_never(entry.outcome)


def _facts(check: Check, last: Ping | None) -> list[Fact]:
    position, spec = check.position, check.spec
    facts = [
        Fact("rule", describe(spec.rule, check.id)),
        Fact("grace_seconds", number(spec.grace_seconds)),
        Fact("state_since", rfc3339(position.state_since)),
        Fact("expected_at", optional_rfc3339(position.expected_at)),
        Fact("due_at", optional_rfc3339(position.due_at)),
        Fact("pings", position.ping_count, f"/v1/checks/{spec.name}/pings"),
    ]
    if last is not None:
        facts += [Fact("last_ping_at", rfc3339(last.at)), Fact("last_ping_kind", last.kind.value)]
        if last.exit_status is not None:
            facts.append(Fact("last_exit_status", last.exit_status))
    return facts


def _next(check: Check) -> str:
    expected_at = check.position.expected_at
    return "no time: the rule has ended" if expected_at is None else rfc3339(expected_at)


def _time(at: datetime | None) -> str:
    return "an unknown time" if at is None else rfc3339(at)

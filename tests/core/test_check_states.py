"""What pings and time do to a check: interval and cron, runs, failures, pauses, edits, and properties of the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.check_states import (
    CheckStep,
    Expectation,
    due_step,
    edit_step,
    first_position,
    missing_instants,
    pause_step,
    ping_step,
    resume_step,
)
from everbeat.core.checks import (
    Check,
    CheckInput,
    CheckOutcome,
    CheckPosition,
    CheckState,
    CheckStatus,
    DownReason,
    Ping,
    PingKind,
    parse_check,
)
from everbeat.core.errors import InvalidInput
from everbeat.core.rules import TriggerKind
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.timeline import compile_rule

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
RID, OTHER_RID = UUID(int=1), UUID(int=2)


def expectation(**fields: object) -> Expectation:
    spec = parse_check("job", CheckInput(**{"grace_seconds": 60, **fields}))  # type: ignore[arg-type]
    return Expectation(spec, None if spec.rule.kind is TriggerKind.EVERY else compile_rule(spec.rule, None, {}))


HOURLY = expectation(every_seconds=3600)
CRON = expectation(cron="0 * * * *")


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


class Job:
    """A check that is stepped by hand, with everything that was recorded."""

    def __init__(self, rule: Expectation) -> None:
        self.rule = rule
        self.position = first_position(START)
        self.ticks: list[tuple[float, str, int]] = []
        self.transitions: list[tuple[str, str | None]] = []
        self.pings: list[Ping] = []

    def _apply(self, step: CheckStep) -> None:
        self.position = step.position
        for tick in step.ticks:
            self.ticks.append(((tick.scheduled_for - START).total_seconds() / 60, tick.outcome.value, tick.count))
        self.transitions += [(one.to_state.value, one.reason and one.reason.value) for one in step.transitions]

    def ping(self, minutes: float, kind: PingKind = PingKind.SUCCESS, rid: UUID | None = None) -> Job:
        step, ping = ping_step(self.position, self.rule, Ping(at=at(minutes), kind=kind, rid=rid))
        self._apply(step)
        self.pings.append(ping)
        return self

    def wait(self, minutes: float) -> Job:
        self._apply(due_step(self.position, self.rule, at(minutes)))
        return self

    def pause(self, minutes: float) -> Job:
        self._apply(pause_step(self.position, self.rule, at(minutes)))
        return self

    def resume(self, minutes: float) -> Job:
        self._apply(resume_step(self.position, self.rule, at(minutes)))
        return self

    @property
    def state(self) -> CheckState:
        return self.position.state

    @property
    def due(self) -> float | None:
        return None if self.position.due_at is None else (self.position.due_at - START).total_seconds() / 60

    def status(self, minutes: float) -> CheckStatus:
        check = Check(
            id=RID,
            tenant_id=DEFAULT_TENANT,
            spec=parse_check("job", CheckInput(every_seconds=60)),
            token="",
            position=self.position,
            created_at=START,
            updated_at=START,
        )
        return check.status_at(at(minutes))


def test_a_new_check_waits_for_its_first_ping_without_a_deadline() -> None:
    job = Job(HOURLY).wait(100_000)
    assert (job.state, job.due, job.transitions) == (CheckState.NEW, None, [])


def test_an_interval_counts_from_the_last_ping() -> None:
    job = Job(HOURLY).ping(7)
    assert (job.state, job.due, job.status(8)) == (CheckState.UP, 68, CheckStatus.UP)
    job.ping(67.5)  # late, within the grace
    assert (job.due, job.ticks) == (128.5, [(7, "pinged", 1), (67, "pinged", 1)])


def test_a_job_that_drifts_is_never_late() -> None:
    job = Job(HOURLY)
    for number in range(50):
        job.ping(5 + number * 60.5).wait(5 + number * 60.5 + 60.4)
    assert {tick[1] for tick in job.ticks} == {"pinged"}
    assert job.transitions == [("up", None)]
    assert len(job.ticks) == 50


def test_frequent_pings_give_at_most_two_entries_for_an_interval() -> None:
    job = Job(HOURLY)
    for minute in range(600):
        job.ping(minute)
    assert len(job.ticks) == 20
    assert job.due == 599 + 61


def test_it_goes_down_when_the_grace_has_passed_and_comes_up_with_a_success() -> None:
    job = Job(HOURLY).ping(0).wait(60.9)
    assert (job.state, job.status(60.9)) == (CheckState.UP, CheckStatus.LATE)
    job.wait(61)
    assert (job.state, job.position.reason, job.due) == (CheckState.DOWN, DownReason.MISSED, None)
    job.wait(10_000)  # nothing is written while it is down
    job.ping(200)
    assert (job.state, job.position.reason, job.due) == (CheckState.UP, None, 261)
    assert job.ticks == [(0, "pinged", 1), (60, "missed", 1), (120, "missed", 2)]
    assert job.transitions == [("up", None), ("down", "missed"), ("up", None)]


def test_a_late_ping_has_the_same_result_whether_or_not_the_evaluator_has_run() -> None:
    with_evaluator, without = Job(CRON).ping(0.5).wait(61).ping(150), Job(CRON).ping(0.5).ping(150)
    assert with_evaluator.transitions == without.transitions
    assert {tick[:2] for tick in with_evaluator.ticks} == {(0, "pinged"), (60, "missed"), (120, "missed")} - {(0, "pinged")}
    assert sum(tick[2] for tick in with_evaluator.ticks) == sum(tick[2] for tick in without.ticks)


def test_cron_expects_the_next_tick_after_the_last_ping() -> None:
    job = Job(CRON).ping(60.2)
    assert (job.due, job.ticks) == (121, [(60, "pinged", 1)])  # the first ping answers the tick just before it
    job.ping(120.5).ping(150)  # an extra ping answers nothing
    assert (job.due, job.ticks[1:]) == (181, [(120, "pinged", 1)])


def test_one_ping_answers_all_ticks_whose_grace_has_not_passed() -> None:
    job = Job(expectation(cron="*/10 * * * *", grace_seconds=3600)).ping(0.1).ping(35)
    assert job.ticks == [(10, "pinged", 3)]


def test_a_job_whose_clock_is_ahead_is_not_missed() -> None:
    job = Job(CRON).ping(60.2).ping(119.6)
    assert job.ticks == [(60, "pinged", 1), (120, "pinged", 1)]
    assert job.due == 181
    assert Job(CRON).ping(60.2).ping(119).due == 121  # a minute early is another run


def test_a_failure_takes_it_down_at_once() -> None:
    job = Job(HOURLY).ping(0).ping(60.5, PingKind.FAIL)
    assert (job.state, job.position.reason) == (CheckState.DOWN, DownReason.FAILED)
    assert job.ticks[-1] == (60, "failed", 1)
    job.ping(70, PingKind.FAIL).ping(75)
    assert job.transitions == [("up", None), ("down", "failed"), ("up", None)]
    assert Job(HOURLY).ping(1, PingKind.FAIL).state is CheckState.DOWN


def test_a_log_message_changes_nothing() -> None:
    job = Job(HOURLY).ping(0)
    before = job.position
    job.ping(30, PingKind.LOG)
    assert job.position == msgspec.structs.replace(before, ping_count=2)
    assert job.ping(61.5, PingKind.LOG).state is CheckState.DOWN  # but time has passed


def test_a_run_that_ends_in_time_has_a_duration() -> None:
    job = Job(HOURLY).ping(0).ping(60.5, PingKind.START)
    assert (job.status(60.6), job.due) == (CheckStatus.STARTED, 61.5)
    job.ping(61.4)
    assert (job.state, job.pings[-1].duration_seconds, job.position.last_duration_seconds) == (CheckState.UP, 54, 54)


def test_a_run_that_started_in_time_may_end_after_the_grace() -> None:
    slow = expectation(cron="0 * * * *", timeout_seconds=3 * 3600)
    job = Job(slow).ping(0.5).ping(60.5, PingKind.START).wait(170).ping(170)
    assert job.ticks == [(60, "pinged", 2)]
    assert job.transitions == [("up", None)]
    assert job.due == 181


def test_a_run_that_does_not_end_takes_it_down() -> None:
    job = Job(HOURLY).ping(0).ping(60.5, PingKind.START).wait(61.6)
    assert (job.state, job.position.reason, job.position.runs) == (CheckState.DOWN, DownReason.UNFINISHED, ())
    assert job.ticks[-1] == (60, "missed", 1)
    new = Job(HOURLY).ping(0, PingKind.START).wait(1)
    assert (new.state, new.ticks) == (CheckState.DOWN, [])


def test_a_job_that_restarts_in_a_loop_is_noticed() -> None:
    job = Job(HOURLY).ping(0)
    for number in range(10):
        job.ping(10 + number * 0.2, PingKind.START)
    assert job.wait(11).state is CheckState.DOWN


def test_overlapping_runs_are_told_apart_by_their_ids() -> None:
    job = Job(expectation(every_seconds=3600, timeout_seconds=600)).ping(0)
    job.ping(1, PingKind.START, RID).ping(2, PingKind.START, OTHER_RID).ping(3, PingKind.START)
    job.ping(4, rid=OTHER_RID)
    assert (job.pings[-1].duration_seconds, job.due) == (120, 11)
    job.ping(5)
    assert (job.pings[-1].duration_seconds, [run.rid for run in job.position.runs]) == (120, [RID])
    assert job.wait(11).position.reason is DownReason.UNFINISHED
    assert job.ping(12, rid=RID).pings[-1].duration_seconds is None


def test_the_number_of_open_runs_is_limited() -> None:
    job = Job(HOURLY)
    for number in range(200):
        job.ping(number / 100, PingKind.START, UUID(int=number + 1))
    assert len(job.position.runs) == 100


def test_a_pause_expects_nothing_and_keeps_its_pings() -> None:
    job = Job(CRON).ping(60.5).pause(70).wait(500).ping(130).ping(131, PingKind.FAIL)
    assert (job.state, job.due, job.position.ping_count) == (CheckState.PAUSED, None, 3)
    job.resume(250)
    assert job.ticks == [(60, "pinged", 1), (120, "skipped", 3)]
    assert (job.state, job.due) == (CheckState.NEW, 301)
    assert job.wait(301).state is CheckState.DOWN
    assert job.transitions == [("up", None), ("paused", None), ("new", None), ("down", "missed")]


def test_a_check_without_pings_has_no_deadline_after_a_pause_either() -> None:
    job = Job(HOURLY).pause(10).resume(20).wait(10_000)
    assert (job.state, job.ticks) == (CheckState.NEW, [])


def test_a_pause_records_what_was_missed_before_it() -> None:
    job = Job(CRON).ping(60.5).wait(121).pause(200).resume(310)
    assert job.ticks == [(60, "pinged", 1), (120, "missed", 1), (180, "missed", 1), (240, "skipped", 2)]


def test_a_new_rule_counts_from_now() -> None:
    job = Job(CRON).ping(60.5)
    after = expectation(every_seconds=600)
    step = edit_step(job.position, CRON, after, at(90), has_new_rule=True)
    assert (step.position.expected_at, step.position.due_at, step.ticks) == (at(100), at(101), ())
    down = edit_step(job.wait(121).position, CRON, after, at(300), has_new_rule=True)
    assert [(tick.scheduled_for, tick.outcome, tick.count) for tick in down.ticks] == [(at(180), CheckOutcome.MISSED, 2)]


def test_a_new_grace_moves_the_deadline() -> None:
    job = Job(HOURLY).ping(0)
    step = edit_step(job.position, HOURLY, expectation(every_seconds=3600, grace_seconds=600), at(10), has_new_rule=False)
    assert step.position.due_at == at(70)


def test_the_missed_pings_of_a_check_that_is_down_are_computed() -> None:
    job = Job(CRON).ping(60.5).wait(121)
    missing = missing_instants(job.position, CRON, at(245))
    assert missing is not None
    assert (missing.first, missing.last, missing.number) == (at(180), at(240), 2)
    overdue = Job(CRON).ping(60.5)  # the evaluator does not run
    assert missing_instants(overdue.position, CRON, at(245)).number == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "cron"),
        ({"cron": "* * * * *", "every_seconds": 60}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"every_seconds": 0.5}, "every_seconds"),
        ({"cron": "* * * * *", "timezone": "Nowhere"}, "timezone"),
        ({"every_seconds": 60, "labels": {"a b": "c"}}, "labels.'a b'"),
        ({"every_seconds": 60, "description": "\x00"}, "description"),
    ],
)
def test_invalid_definitions_are_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_check("job", CheckInput(**fields))  # type: ignore[arg-type]
    assert [error.field for error in refused.value.errors] == [field]


KINDS = st.sampled_from([PingKind.SUCCESS, PingKind.SUCCESS, PingKind.SUCCESS, PingKind.FAIL, PingKind.START, PingKind.LOG])


def ledger_of(
    position: CheckPosition, rule: Expectation, events: Sequence[tuple[int, str, PingKind]]
) -> list[tuple[datetime, int]]:
    recorded, moment = [], START
    for seconds, action, kind in events:
        moment += timedelta(seconds=seconds)
        if action == "ping":
            step, _ = ping_step(position, rule, Ping(at=moment, kind=kind))
        elif action == "evaluate":
            step = due_step(position, rule, moment)
        else:
            step = (resume_step if position.state is CheckState.PAUSED else pause_step)(position, rule, moment)
        position = step.position
        recorded += [(tick.scheduled_for, tick.until or tick.scheduled_for, tick.count) for tick in step.ticks]
        assert (position.due_at is None) or position.state in (CheckState.NEW, CheckState.UP)
    missing = missing_instants(position, rule, moment)
    if missing is not None:
        recorded.append((missing.first, missing.last, missing.number))
    assert all(before[1] < after[0] for before, after in itertools.pairwise(recorded)), recorded
    return [(first, number) for first, _, number in recorded]


EVENTS = st.lists(
    st.tuples(st.integers(1, 3000), st.sampled_from(["ping"] * 5 + ["evaluate"] * 3 + ["pause"]), KINDS), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_entries_are_in_order_and_never_overlap(events: list[tuple[int, str, PingKind]]) -> None:
    ledger_of(first_position(START), HOURLY, events)
    ledger_of(first_position(START), CRON, events)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_the_ledger_has_every_tick_of_cron_once_the_first_ping_has_come(events: list[tuple[int, str, PingKind]]) -> None:
    """Every tick between the first and the last entry has an outcome, however often the evaluator has run."""
    rule = expectation(cron="*/10 * * * *", grace_seconds=300, timeout_seconds=900)
    recorded = ledger_of(first_position(START), rule, events)
    if recorded:
        first, last = recorded[0][0], recorded[-1][0]
        ticks = rule.instants(first, last)
        assert ticks is not None
        assert sum(number for _, number in recorded[:-1]) + 1 == ticks.number

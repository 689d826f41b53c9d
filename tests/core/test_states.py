"""States are defined in four places (enums, TRANSITIONS, both databases, the docs), which must agree."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

from everbeat.core.rules import DstFold, DstGap, TriggerKind
from everbeat.core.schedules import CatchUp, Overlap, Status
from everbeat.core.tasks import LIVE_STATES, TRANSITIONS, AttemptOutcome, Origin, TaskState
from everbeat.core.ticks import Outcome, SkipReason
from everbeat.store.migrate import load_migrations

STATES_PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "states.md"
PACKAGES = ["everbeat.store.sqlite", "everbeat.store.postgres"]
CHECKED: list[tuple[str, str, set[str]]] = [
    ("schedules", "status", set(Status)),
    ("schedules", "trigger_kind", set(TriggerKind)),
    ("schedules", "dst_gap", set(DstGap)),
    ("schedules", "dst_fold", set(DstFold)),
    ("schedules", "overlap", set(Overlap)),
    ("schedules", "catch_up", set(CatchUp)),
    ("ticks", "outcome", set(Outcome)),
    ("ticks", "reason", set(SkipReason)),
    ("tasks", "origin", set(Origin)),
    ("tasks", "state", set(LIVE_STATES)),
    ("task_history", "state", {state for state in TaskState if state not in LIVE_STATES}),
    ("attempts", "outcome", set(AttemptOutcome)),
]


def checked_values(package: str, table: str, column: str) -> set[str]:
    text = "\n".join(migration.sql for migration in load_migrations(package))
    body = re.search(rf"(?ms)^CREATE TABLE {table} \((.*?)^\)", text)
    assert body is not None
    check = re.search(rf"(?m)^  {column} .*CHECK \({column} IN \((.*?)\)\)", body[1])
    assert check is not None, f"{table}.{column} has no CHECK"
    values = check[1]
    for statement in text.split(";"):
        if f"ALTER TABLE {table} " in statement or f"name = '{table}'" in statement:
            values = (re.findall(rf"CHECK \({column} IN \((.*?)\)\)", statement) or [values])[-1]
    return set(re.findall(r"'(\w+)'", values))


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(("table", "column", "expected"), CHECKED)
def test_a_database_allows_exactly_the_states_of_core(package: str, table: str, column: str, expected: set[str]) -> None:
    assert checked_values(package, table, column) == {str(value) for value in expected}


def test_every_state_of_a_task_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(TaskState)
    assert {state for state, following in TRANSITIONS.items() if following} == LIVE_STATES


def test_every_state_of_a_task_can_be_reached_and_left() -> None:
    reached = {state for following in TRANSITIONS.values() for state in following}
    assert reached == set(TaskState)
    for state in LIVE_STATES:
        seen, frontier = {state}, {state}
        while frontier:
            frontier = {following for one in frontier for following in TRANSITIONS[one]} - seen
            seen |= frontier
        assert seen - LIVE_STATES, f"{state} never ends"


def test_every_final_state_of_a_task_is_an_attempt_outcome_except_dead() -> None:
    finals = {state.value for state in TaskState if state not in LIVE_STATES}
    assert finals - {outcome.value for outcome in AttemptOutcome} == {"dead"}, "a task can be dead, an attempt cannot"


@pytest.mark.parametrize("states", [Status, TaskState, AttemptOutcome, Outcome, SkipReason])
def test_the_page_about_states_lists_all_of_them(states: type[StrEnum]) -> None:
    page = STATES_PAGE.read_text(encoding="utf-8")
    assert [state.value for state in states if not re.search(rf"\b{state.value}\b", page)] == []

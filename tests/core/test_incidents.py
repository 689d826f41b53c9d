"""Incidents: opening, counting, ending, and which messages are due; as examples and as properties of random histories."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import count, pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.alert_messages import notification_tasks, recipients
from everbeat.core.alerts import AlertInput, AlertRule, WhenDead
from everbeat.core.incident_links import why_link
from everbeat.core.incidents import (
    EXPIRES_AFTER,
    Finding,
    Incident,
    IncidentResolution,
    IncidentState,
    Judgement,
    Notification,
    NotificationEvent,
    Subject,
    plan_incidents,
    plan_notifications,
)
from everbeat.core.message_targets import EmailTarget
from everbeat.core.quiet_times import MaintenanceWindow, QuietTimes
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.targets import WorkerTarget
from tests.factories import NOW, minutes, seconds

IDS = map(UUID, (f"{number:032x}" for number in count(1)))
SUBJECTS = ("a", "b", "c")


def rule_of(**more: Any) -> AlertRule:
    fields: dict[str, Any] = {"when": WhenDead(), "notify": [WorkerTarget(type="tell")], "group_seconds": 0, **more}
    return AlertRule(
        tenant_id=DEFAULT_TENANT, name="rule", given=AlertInput(**fields), revision=1, created_at=NOW, updated_at=NOW
    )


def finding(key: str = "a", at: float = 0.0, **more: Any) -> Finding:
    return Finding(Subject(key, f"subject {key}"), f"{key} is broken", NOW + seconds(at), **more)


class History:
    """The incidents of a rule over several passes, as the store would keep them, and the messages."""

    def __init__(self, rule: AlertRule) -> None:
        self.rule = rule
        self.incidents: dict[UUID, Incident] = {}
        self.sent_at: datetime | None = None
        self.messages: list[Notification] = []

    def step(self, at: float, *findings: Finding, recovered: tuple[str, ...] = (), others: bool = False) -> None:
        now = NOW + seconds(at)
        plan = plan_incidents(self.rule, Judgement(findings, recovered, others), self.incidents.values(), now, IDS)
        self.incidents |= {one.id: one for one in [*plan.opened, *plan.changed]}
        pending = [one for one in self.incidents.values() if one.is_unresolved or one.pending]
        notified = plan_notifications(self.rule, pending, self.sent_at, now)
        self.incidents |= {one.id: one for one in notified.changed}
        self.sent_at = notified.sent_at
        self.messages += notified.notifications

    def of(self, key: str) -> list[Incident]:
        return [one for one in self.incidents.values() if one.subject == key]

    def events(self) -> list[tuple[str, int]]:
        return [(one.event.value, len(one.incidents)) for one in self.messages]


def test_an_incident_counts_newer_occurrences_only() -> None:
    history = History(rule_of())
    history.step(0, finding(at=0))
    history.step(5, finding(at=0))
    history.step(10, finding(at=8, count=3))
    (incident,) = history.of("a")
    assert (incident.count, incident.occurred_at, incident.opened_at) == (4, NOW + seconds(8), NOW)
    assert (incident.last_seen_at, history.events()) == (NOW + seconds(10), [("opened", 1)])


def test_several_findings_of_one_pass_about_a_subject_are_one_incident() -> None:
    history = History(rule_of())
    history.step(0, finding(at=0), finding(at=1), finding("b"))
    assert [one.count for one in history.of("a")] == [2]
    assert history.events() == [("opened", 2)]


def test_a_subject_that_breaks_again_gets_a_new_incident() -> None:
    history = History(rule_of())
    history.step(0, finding())
    history.step(1, recovered=("a",))
    history.step(2, finding(at=2))
    assert [one.state for one in history.of("a")] == [IncidentState.RESOLVED, IncidentState.OPEN]
    assert history.events() == [("opened", 1), ("resolved", 1), ("opened", 1)]


def test_what_is_found_is_not_recovered_in_the_same_pass() -> None:
    history = History(rule_of())
    history.step(0, finding())
    history.step(1, finding(at=1), recovered=("a",), others=True)
    assert [one.state for one in history.of("a")] == [IncidentState.OPEN]


def test_an_incident_expires() -> None:
    history = History(rule_of())
    history.step(0, finding())
    history.step(EXPIRES_AFTER.total_seconds() - 1)
    assert history.of("a")[0].is_unresolved
    history.step(EXPIRES_AFTER.total_seconds())
    assert history.of("a")[0].resolution is IncidentResolution.EXPIRED


def test_an_incident_that_ends_before_it_is_reported_is_never_reported() -> None:
    history = History(rule_of(group_seconds=60))
    history.step(0, finding("a"))
    history.step(1, finding("b", at=1))
    history.step(2, recovered=("b",))
    history.step(100)
    assert history.events() == [("opened", 1)]


def test_the_first_incident_is_reported_at_once_and_the_next_ones_together() -> None:
    history = History(rule_of(group_seconds=60))
    for at, key in ((0, "a"), (10, "b"), (20, "c")):
        history.step(at, finding(key, at=at))
    assert history.events() == [("opened", 1)]
    history.step(60)
    assert history.events() == [("opened", 1), ("opened", 2)]


@given(
    steps=st.lists(
        st.tuples(
            st.floats(0.1, 400),
            st.lists(st.sampled_from(SUBJECTS), max_size=3, unique=True),
            st.lists(st.sampled_from(SUBJECTS), max_size=3, unique=True),
        ),
        max_size=30,
    ),
    group_seconds=st.sampled_from([0, 60, 300]),
    remind_seconds=st.sampled_from([None, 60, 300]),
    quiet=st.one_of(st.none(), st.tuples(st.integers(0, 2000), st.integers(1, 2000))),
)
def test_messages_of_every_history(
    steps: list[tuple[float, list[str], list[str]]],
    group_seconds: float,
    remind_seconds: float | None,
    quiet: tuple[int, int] | None,
) -> None:
    window = None
    if quiet is not None:
        start = NOW + seconds(quiet[0])
        window = MaintenanceWindow(from_=start, to=start + seconds(quiet[1]))
    quiet_times = None if window is None else QuietTimes(maintenance=[window])
    history = History(rule_of(group_seconds=group_seconds, remind_seconds=remind_seconds, quiet=quiet_times))
    at = 0.0
    for gap, broken, recovered in steps:
        at += gap
        before = len(history.messages)
        history.step(at, *(finding(key, at=at) for key in broken), recovered=tuple(recovered))
        unresolved = Counter(one.subject for one in history.incidents.values() if one.is_unresolved)
        assert all(number == 1 for number in unresolved.values())
        if window is not None and window.from_ <= NOW + seconds(at) < window.to:
            assert len(history.messages) == before, "nothing is sent in a quiet time"
    history.step(at + 10_000, recovered=SUBJECTS)
    history.step(at + 20_000)
    sent = Counter((one.event, incident.id) for one in history.messages for incident in one.incidents)
    for incident in history.incidents.values():
        assert not incident.is_unresolved
        opened = sent[NotificationEvent.OPENED, incident.id]
        assert opened <= 1
        assert sent[NotificationEvent.RESOLVED, incident.id] == opened, "the end is reported exactly if the opening was"
        assert sent[NotificationEvent.REMINDER, incident.id] == incident.reminders
        assert (incident.announced_at is not None) == bool(opened)
        assert incident.pending is None
    openings = sorted({one.announced_at for one in history.incidents.values() if one.announced_at is not None})
    assert all(later - earlier >= timedelta(seconds=group_seconds) for earlier, later in pairwise(openings))


def test_an_email_to_several_addresses_is_a_task_for_each_of_them() -> None:
    email = EmailTarget(to=["a@example.org", "b@example.org", "a@example.org"], broker="mail")
    rule = rule_of(notify=[email, WorkerTarget(type="tell", queue="q")])
    assert [getattr(one, "to", None) for one in recipients(rule.given.notify)] == [["a@example.org"], ["b@example.org"], None]
    history = History(rule)
    history.step(0, finding())
    tasks = notification_tasks(rule, history.messages[0], NOW, iter(IDS), None)
    assert [(one.queue, one.type) for one in tasks] == [("everbeat:email", "alert"), ("everbeat:email", "alert"), ("q", "tell")]
    assert len({one.id for one in tasks}) == 3


@pytest.mark.parametrize("public_url", [None, "https://everbeat.example.org"])
def test_a_message_without_a_public_url_has_no_absolute_links(public_url: str | None) -> None:
    history = History(rule_of())
    history.step(0, finding())
    (task,) = notification_tasks(history.rule, history.messages[0], NOW + minutes(1), iter(IDS), public_url)
    assert (b"https://everbeat.example.org/incidents/" in task.payload) == (public_url is not None)
    assert why_link(history.of("a")[0]) is None


def test_the_explanation_of_a_check_is_linked_by_its_name() -> None:
    history = History(rule_of())
    history.step(0, Finding(Subject("check:01a1f57a", "check nightly:backup"), "no ping", NOW))
    assert why_link(history.of("check:01a1f57a")[0]) == "/v1/checks/nightly%3Abackup/why"

"""examples/reminders: created once per key, rescheduled, cancelled, and run when they are due."""

from __future__ import annotations

import pytest

from everbeat import EverbeatError
from tests.examples.conftest import ExampleRun
from tests.support.processes import wait_until


def test_a_reminder_is_rescheduled_and_runs_when_it_is_due(example: ExampleRun) -> None:
    dev = example.dev("reminders", "reminders:eb")
    reminders = example.load("reminders", "reminders")
    task = reminders.add("ann", "dentist", "10m", "appointment-1")
    assert task.state == "scheduled"
    assert reminders.move(task.id, 3600).run_at > task.run_at
    assert "→ ann" not in dev.logs()
    reminders.move(task.id, 0)
    wait_until(lambda: "→ ann: dentist" in dev.logs(), 10, dev.logs)
    wait_until(lambda: reminders.eb.client.tasks.get(task.id).state == "completed", 10)
    with pytest.raises(EverbeatError, match="the task is completed"):
        reminders.move(task.id, 60)


def test_a_reminder_is_created_once_and_can_be_dropped(example: ExampleRun) -> None:
    example.serve()
    reminders = example.load("reminders", "reminders")
    first = reminders.add("ann", "dentist", key="appointment-1")
    assert reminders.add("ann", "dentist", key="appointment-1").id == first.id
    with pytest.raises(EverbeatError, match="used before"):
        reminders.add("ann", "doctor", key="appointment-1")
    assert example.script("reminders", "reminders.py", "list").count("ann: dentist") == 1
    assert "cancelled" in example.script("reminders", "reminders.py", "drop", first.id)
    assert example.script("reminders", "reminders.py", "list") == ""

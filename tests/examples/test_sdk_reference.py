"""docs/reference/sdk.md documents everything that a user of the SDK can import, call, pass or read."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everbeat
import everbeat.testing
from everbeat import Context, Everbeat, Retry, TaskHandle
from everbeat.client.api import DeadLettersClient, SchedulesClient, TasksClient
from everbeat.client.options import NamedOptions, ScheduleOptions, SubmitOptions, TaskOptions
from everbeat.client.tasks import Task
from everbeat.testing import FakeClock, Harness, TaskRun

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference/sdk.md").read_text(encoding="utf-8")
TESTING = (DOCS / "howto/test-your-tasks.md").read_text(encoding="utf-8")

FOR_THE_RUNTIME = {"cancel", "has_update", "take_update", "return_update"}
FOR_THE_HARNESS = {"skip", "step_back", "step_to"}


def public(kind: type[Any]) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def missing(text: str, names: list[str]) -> list[str]:
    """Return the names that do not occur in the page's inline code as whole words."""
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    code = " ".join(re.findall(r"`([^`\n]+)`", prose))
    return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code)]


def test_every_public_name_is_documented() -> None:
    assert missing(REFERENCE, everbeat.__all__) == []
    assert missing(REFERENCE, everbeat.testing.__all__) == []


@pytest.mark.parametrize("kind", [Everbeat, Task, TaskHandle, SchedulesClient, TasksClient, DeadLettersClient])
def test_every_method_is_documented(kind: type[Any]) -> None:
    assert missing(REFERENCE, [name for name in public(kind) if name != "definition"]) == []


def test_every_member_of_the_context_is_documented() -> None:
    names = [name for name in public(Context) if name not in FOR_THE_RUNTIME]
    assert missing(REFERENCE, [f"ctx.{name}" for name in names]) == []


@pytest.mark.parametrize("options", [TaskOptions, ScheduleOptions, SubmitOptions, NamedOptions])
def test_every_option_is_documented(options: type[Any]) -> None:
    assert missing(REFERENCE, list(options.__annotations__)) == []


@pytest.mark.parametrize("function", [Everbeat.__init__, Everbeat.running, Everbeat.register, Everbeat.submit])
def test_every_parameter_is_documented(function: Any) -> None:
    assert missing(REFERENCE, [name for name in inspect.signature(function).parameters if name != "self"]) == []


def test_every_field_of_a_retry_is_documented_with_its_default() -> None:
    for field in msgspec.structs.fields(Retry):
        default = f'"{field.default.value}"' if hasattr(field.default, "value") else str(field.default)
        assert f"{field.name}={default}" in REFERENCE


def test_the_harness_is_documented() -> None:
    assert missing(TESTING, public(Harness)) == []
    assert missing(TESTING, [name for name in public(FakeClock) if name not in FOR_THE_HARNESS]) == []
    assert missing(TESTING, list(TaskRun.__annotations__)) == []

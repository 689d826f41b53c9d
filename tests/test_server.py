"""Nodes with any roles can be built, started and stopped; an embedded node prints nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from everbeat.config import Settings
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.server import EmbeddedNode, Node


@pytest.mark.parametrize("roles", [("scheduler",), ("api",), ("api", "scheduler")])
def test_a_node_with_any_roles_can_be_built(sqlite_path: Path, roles: tuple[str, ...]) -> None:
    Node(Settings(database_url=f"sqlite:///{sqlite_path}", roles=roles))  # type: ignore[arg-type]


async def test_a_node_without_roles_submits_and_runs_nothing(sqlite_path: Path) -> None:
    node = EmbeddedNode(Settings(database_url=f"sqlite:///{sqlite_path}", roles=()))
    await node.start()
    task, is_new = await node.tasks.submit(DEFAULT_TENANT, TaskInput(type="work"))
    assert is_new
    assert (await node.tasks.get(DEFAULT_TENANT, task.id)).state == "ready"
    assert node.loop_monitor.ages() == {}
    await node.stop()


async def test_an_embedded_node_prints_nothing(sqlite_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    node = EmbeddedNode(Settings(database_url=f"sqlite:///{sqlite_path}"))
    await node.start()
    await node.stop()
    assert capfd.readouterr() == ("", "")

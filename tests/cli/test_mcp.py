"""`everbeat mcp`, driven by the client of the mcp package over stdin and stdout, against a server on SQLite."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters

from everbeat.app import Everbeat
from everbeat.cli.main import cli
from everbeat.cli.mcp import McpMissing
from everbeat.cli.mcp_answers import MAX_CHARACTERS, bounded
from tests.support.processes import ServerProcess, free_port

ROOT = Path(__file__).parents[2]
CHANGES = {"schedule_pause", "schedule_resume", "schedule_trigger", "schedule_backfill", "task_cancel", "task_retry"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server with keys: its URL, and the file of its admin key."""
    folder = tmp_path_factory.mktemp("mcp")
    port, key_file = free_port(), folder / "admin.key"
    arguments = ["serve", "--port", str(port), "--database-url", f"sqlite:///{folder}/x.db", "--migrate"]
    with ServerProcess(*arguments, "--admin-key-file", str(key_file), folder=folder) as process:
        process.wait_ready(f"http://127.0.0.1:{port}/readyz", 30)
        yield f"http://127.0.0.1:{port}", key_file


@pytest.fixture
def app(server: tuple[str, Path]) -> Iterator[Everbeat]:
    url, key_file = server
    found = Everbeat(url, api_key=key_file.read_text().strip())
    yield found
    found.close()


@asynccontextmanager
async def tools(server: tuple[str, Path], *options: str) -> AsyncIterator[Client]:
    url, key_file = server
    environment = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    arguments = ["-m", "everbeat", "mcp", "--url", url, "--api-key-file", str(key_file), *options]
    async with Client(StdioServerParameters(command=sys.executable, args=arguments, env=environment)) as client:
        yield client


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    content: dict[str, Any] = result.structured_content
    return content


async def error_of(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]


def define(app: Everbeat, name: str) -> None:
    target = {"kind": "worker", "queue": "reports", "type": "report"}
    app.client.schedules.put({"name": name, "cron": "0 2 * * *", "target": target, "payload": {"text": "x" * 5000}})


async def test_the_tools_read_what_the_server_knows(server: tuple[str, Path], app: Everbeat) -> None:
    define(app, "nightly")
    task = str(app.client.schedules.trigger("nightly").id)
    async with tools(server) as client:
        listed = (await client.list_tools()).tools
        assert not CHANGES & {tool.name for tool in listed}
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed)
        assert [each["name"] for each in (await call(client, "schedules_list", name_prefix="night"))["items"]] == ["nightly"]
        shown = await call(client, "schedule_show", schedule="nightly")
        assert shown["cron"] == "0 2 * * *"
        assert shown["payload"]["text"].endswith("(3000 more characters)")
        ticks = await call(client, "schedule_ticks", schedule="nightly", from_time="now", to_time="in 3 days")
        assert {each["outcome"] for each in ticks["items"]} == {"upcoming"}
        assert (await call(client, "schedule_why", schedule="nightly", at="in 2 days"))["verdict"]
        assert "reports" in (await call(client, "task_why", task=task))["explanation"]
        assert (await call(client, "audit"))["missing"] == 0
        assert [each["id"] for each in (await call(client, "tasks_list", queue="reports"))["items"]] == [task]
        assert (await call(client, "task_show", task=task))["state"] == "ready"
        assert await call(client, "task_log", task=task) == {"items": [], "lines_before": 0}
        assert (await call(client, "dead_letters_list"))["items"] == []
        assert (await call(client, "incidents_list", state="open"))["items"] == []
        assert [each["queue"] for each in (await call(client, "queues_list"))["items"]] == ["reports"]
        assert (await call(client, "workers_list"))["items"] == []
        assert len((await call(client, "preview", cron="0 2 * * *", count=3))["ticks"]) == 3
        assert "nowhere" in await error_of(client, "schedule_show", schedule="nowhere")
        assert "is not understood" in await error_of(client, "schedule_why", schedule="nightly", at="someday")
        assert await error_of(client, "schedule_pause", schedule="nightly")
    assert app.client.schedules.get("nightly").status == "active"


async def test_changes_say_what_would_happen_until_they_are_confirmed(server: tuple[str, Path], app: Everbeat) -> None:
    define(app, "changed")
    async with tools(server, "--allow-changes") as client:
        would = await call(client, "schedule_pause", schedule="changed", note="holiday")
        assert (would["changed"], would["now"]["status"]) == (False, "active")
        assert app.client.schedules.get("changed").status == "active"
        await call(client, "schedule_pause", schedule="changed", note="holiday", confirm=True)
        assert app.client.schedules.get("changed").status == "paused"
        await call(client, "schedule_resume", schedule="changed")
        assert app.client.schedules.get("changed").status == "paused"
        await call(client, "schedule_resume", schedule="changed", confirm=True)
        assert app.client.schedules.get("changed").status == "active"

        assert not (await call(client, "schedule_trigger", schedule="changed"))["changed"]
        assert app.client.schedules.executions("changed") == []
        task = (await call(client, "schedule_trigger", schedule="changed", payload={"a": 1}, confirm=True))["result"]["id"]
        assert (await call(client, "task_cancel", task=task))["now"]["state"] == "ready"
        assert app.client.tasks.get(task).state == "ready"
        await call(client, "task_cancel", task=task, confirm=True)
        assert app.client.tasks.get(task).state == "cancelled"
        assert not (await call(client, "task_retry", task=task))["changed"]
        again = (await call(client, "task_retry", task=task, confirm=True))["result"]
        assert (again["state"], again["payload"]) == ("ready", {"a": 1})

        window = {"schedule": "changed", "from_time": "3 days ago", "to_time": "now"}
        planned = await call(client, "schedule_backfill", **window, missing_only=False)
        assert (planned["changed"], planned["now"]["count"]) == (False, 3)
        assert len(app.client.schedules.executions("changed")) == 2
        assert (await call(client, "schedule_backfill", **window, missing_only=False, confirm=True))["changed"]


async def test_the_tools_can_do_what_the_key_may_do(server: tuple[str, Path], app: Everbeat, tmp_path: Path) -> None:
    define(app, "guarded")
    created = app.client.requests.send("POST", "/v1/tenants/default/keys", body={"scopes": ["read"], "name": "model"})
    key_file = tmp_path / "read.key"
    key_file.write_text(created["key"])
    key_file.chmod(0o600)
    async with tools((server[0], key_file), "--allow-changes") as client:
        assert (await call(client, "schedule_show", schedule="guarded"))["name"] == "guarded"
        assert "HTTP 403" in await error_of(client, "schedule_pause", schedule="guarded", confirm=True)
    assert app.client.schedules.get("guarded").status == "active"


def test_answers_are_bounded() -> None:
    long = {"items": [{"id": number, "error": "x" * 3000} for number in range(100)]}
    answer = bounded(long)
    assert len(str(answer)) < MAX_CHARACTERS * 1.1
    assert answer["items"]
    many = bounded({"items": [{"id": number, "error": ["y" * 150] * 20} for number in range(100)]})
    assert len(many["items"]) < 100
    assert "more items" in many["left_out"]
    deep = bounded({"payload": {str(number): "z" * 100 for number in range(10_000)}})
    assert "the whole answer has" in deep["note"]
    assert len(deep["shortened"]) <= MAX_CHARACTERS
    assert bounded({"a": 1}) == {"a": 1}


def test_a_missing_package_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    result = CliRunner().invoke(cli, ["mcp", "--url", f"sqlite:///{tmp_path}/x.db"])
    assert isinstance(result.exception, McpMissing)
    assert "everbeat[mcp]" in str(result.exception)

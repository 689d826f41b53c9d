"""`everbeat tenants` as an operator types it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everbeat.cli.main import cli
from everbeat.core.errors import EverbeatError
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import AuditLogFilter


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tenants.db"


def tenants(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["tenants", *arguments, "--database-url", url])


def rows(url: str) -> dict[str, list[str]]:
    lines = tenants(url, "list").stdout.splitlines()
    assert lines[0].split()[:3] == ["NAME", "ID", "WEIGHT"]
    return {cells[0]: cells[2:] for cells in (re.split(r"  +", line) for line in lines[1:])}


def test_create_set_and_list_work_on_the_database(url: str) -> None:
    made = tenants(url, "create", "billing", "--weight", "3", "--max-running", "200", "--submits-per-second", "0.5")
    assert made.exit_code == 0, made.output
    assert "everbeat keys create --tenant billing" in made.stderr
    assert rows(url) == {"billing": ["3", "100000", "-", "200", "0.5", "-", "-", "-"], "default": ["1", *["-"] * 7]}
    changed = tenants(
        url, "set", "billing", "--max-running", "none", "--max-ready", "0", "--min-priority", "70", "--retention-days", "14"
    )
    assert "revision 2" in changed.stderr
    assert rows(url)["billing"] == ["3", "100000", "0", "-", "0.5", "-", "70", "14"]

    async def audit_log() -> list[tuple[str, bool]]:
        store = SqliteStore(url.removeprefix("sqlite:///"))
        found = await store.audit_log_list(None, AuditLogFilter(), before=None, limit=10)
        await store.close()
        return [(one.action, one.actor.startswith("cli")) for one in found]

    assert asyncio.run(audit_log()) == [("tenant.update", True), ("tenant.create", True)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "a b"), "name: must be 1 to 200"),
        (("create", "default"), "already exists"),
        (("set", "unknown", "--weight", "2"), "there is no tenant"),
        (("set", "default"), "nothing to change"),
        (("set", "default", "--max-ready", "many"), "must be 0 to 2147483647, or none"),
        (("set", "default", "--submits-per-second", "nan"), "or none"),
        (("set", "default", "--weight", "0"), "0.001"),
    ],
)
def test_invalid_arguments_are_refused_with_a_clear_error(url: str, arguments: tuple[str, ...], message: str) -> None:
    result = tenants(url, *arguments)
    output = str(result.exception) if isinstance(result.exception, EverbeatError) else result.output
    assert result.exit_code != 0
    assert message in output

"""A real server with API keys, and commands that use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from everbeat.cli.main import cli
from tests.support.processes import ServerProcess, free_port


class Console:
    """Runs commands against a server, with a key."""

    def __init__(self, url: str, key_file: Path) -> None:
        self.url = url
        self.key_file = key_file

    def run(self, *arguments: str, text: str = "") -> Result:
        """Run a command that must succeed."""
        result = self.try_(*arguments, text=text)
        assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
        return result

    def try_(self, *arguments: str, text: str = "") -> Result:
        variables = {"EVERBEAT_URL": self.url, "EVERBEAT_API_KEY": self.key_file.read_text().strip(), "TZ": "Europe/Berlin"}
        return CliRunner().invoke(cli, list(arguments), input=text, env=variables)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-o", "json").stdout)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder, port = tmp_path_factory.mktemp("console"), free_port()
    arguments = ("serve", "--port", str(port), "--database-url", f"sqlite:///{folder}/x.db")
    with ServerProcess(*arguments, "--admin-key-file", str(folder / "admin.key"), "--auth", "keys", folder=folder) as process:
        process.wait_ready(f"http://127.0.0.1:{port}/readyz", 30)
        yield Console(f"http://127.0.0.1:{port}", folder / "admin.key")
        assert process.terminate() == 0

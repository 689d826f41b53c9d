"""examples/custom_target: installed into a folder of its own, found by its entry point, and used by a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.delivery.fleet import get, post
from tests.examples.conftest import EXAMPLES, SOURCE
from tests.support.processes import ServerProcess, free_port, wait_until


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package and install it into a folder, without the network and without changing the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(EXAMPLES / "custom_target")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_task_is_delivered_by_the_kind_of_an_installed_package(installed: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    (tmp_path / "everbeat.toml").write_text(f'[brokers.archive]\nkind = "logfile"\nfolder = "{tmp_path}"\n')
    arguments = ("--port", url.rpartition(":")[2], "--database-url", f"sqlite:///{tmp_path}/e.db")
    with ServerProcess(
        *("serve", "--config", str(tmp_path / "everbeat.toml"), *arguments),
        folder=tmp_path,
        env={"PYTHONPATH": f"{installed}{os.pathsep}{SOURCE}"},
    ) as server:
        server.wait_ready(f"{url}/readyz")
        target = {"kind": "custom", "name": "logfile", "broker": "archive", "options": {"file": "orders.jsonl"}}
        task = post(url, "/v1/tasks", {"type": "order", "payload": {"id": 7}, "target": target})
        wait_until(lambda: get(url, f"/v1/tasks/{task['id']}")["state"] == "completed", 20, server.logs)
        line = json.loads((tmp_path / "orders.jsonl").read_text())
        assert (line["id"], line["payload"], line["headers"]["everbeat-type"]) == (task["id"], {"id": 7}, "order")
        with pytest.raises(AssertionError, match="file must be a file name"):
            post(url, "/v1/tasks", {"type": "order", "target": {**target, "options": {"file": "../x"}}})

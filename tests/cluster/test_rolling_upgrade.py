"""A cluster of the previous release is upgraded and rolled back, with real processes of both versions on one database."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everbeat.version import __version__
from tests.cluster.fleet import DatabaseReader
from tests.cluster.harness import Cluster, Node, running_cluster
from tests.support.postgres import PostgresAdmin
from tests.support.processes import ServerProcess, free_port, wait_until

WHEEL = Path(__file__).parents[1] / "migration/fixtures/everbeat-0.1.0-py3-none-any.whl"
OLD = "0.1.0"


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process of the previous release: its wheel, with the dependencies of this environment."""
    folder = tmp_path_factory.mktemp("release")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def empty_url(postgres_server: PostgresAdmin) -> Iterator[str]:
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


def migrate(url: str, *options: str) -> str:
    command = [sys.executable, "-m", "everbeat", "migrate", "--database-url", url, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


class Load:
    """Submits tasks, claims and completes them, over whatever node responds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.submitted: list[str] = []
        self.unexpected: list[str] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for node in list(self._cluster.nodes):
                number += 1
                with contextlib.suppress(httpx.TransportError):
                    self._submit(node, number)
                    self.work(node)
            time.sleep(0.05)

    def _submit(self, node: Node, number: int) -> None:
        response = httpx.post(
            f"{node.base}/v1/tasks",
            json={"type": "load", "queue": "load"},
            headers={"Idempotency-Key": f"load-{number}"},
            timeout=5,
            trust_env=False,
        )
        if response.status_code in (200, 201):
            self.submitted.append(response.json()["id"])
        elif response.status_code != 503:
            self.unexpected.append(f"{response.status_code} {response.text}")

    def work(self, node: Node) -> int:
        claim = {"worker": "w", "queues": ["load", "default"], "max": 100, "wait_seconds": 0, "lease_seconds": 5}
        response = httpx.post(f"{node.base}/v1/worker/claim", json=claim, timeout=5, trust_env=False)
        if response.status_code != 200:
            if response.status_code != 503:
                self.unexpected.append(f"{response.status_code} {response.text}")
            return 0
        tasks = response.json()["tasks"]
        results = [{"id": task["id"], "fence": task["fence"]} for task in tasks]
        if results:
            done = {"worker": "w", "results": results}
            httpx.post(f"{node.base}/v1/worker/complete", json=done, timeout=5, trust_env=False)
        return len(results)


class Versions:
    """The database of a mixed cluster, and which versions fire."""

    def __init__(self, url: str) -> None:
        self.reader = DatabaseReader(url)

    def firing(self) -> set[str]:
        """The versions of the nodes that fired in the last two seconds."""
        rows = self.reader.rows(
            "SELECT DISTINCT n.version FROM ticks AS t JOIN nodes AS n ON n.id = t.node "
            "WHERE t.fired_at > now() - interval '2 seconds'"
        )
        return {version for (version,) in rows}

    def wait_firing(self, cluster: Cluster, *versions: str) -> None:
        wait_until(
            lambda: self.firing() == set(versions), 40, lambda: f"{versions} fire, not {self.firing()}: {cluster._why()}"
        )


def logs_of(node: Node) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.process.logs().splitlines() if line.startswith("{")]


def stop(cluster: Cluster, node: Node) -> None:
    assert node.process.terminate() == 0, node.process.logs()[-2000:]
    cluster.nodes.remove(node)
    node.client.close()


def test_a_cluster_is_upgraded_and_rolled_back_without_a_gap(
    empty_url: str, old_release: dict[str, str], tmp_path: Path
) -> None:
    versions = Versions(empty_url)
    with running_cluster(empty_url, tmp_path) as cluster:
        old = [cluster.add(f"old{number}", env=old_release) for number in range(2)]
        cluster.register(30)
        with Load(cluster) as load:
            versions.wait_firing(cluster, OLD)

            # The migrations run under load, and old nodes do not notice them.
            assert "nodes of 0.1.0 can use it too" in migrate(empty_url, "--compatible-with", OLD)
            new = [cluster.add("new0")]
            versions.wait_firing(cluster, OLD, __version__)
            for node in old:
                assert node.client.get("/readyz").status_code == 200
                assert node.client.get("/v1/tasks").status_code == 200
                assert node.client.get("/v1/audit").status_code == 200
                assert node.client.get("/v1/tenants").status_code == 200
                assert "schema_is_newer" not in node.process.logs()
                stop(cluster, node)
            versions.wait_firing(cluster, __version__)

            # One release back: a node of the old version joins before the new one leaves.
            cluster.nodes.append(cluster.nodes.pop(0))
            back = cluster.add("back", env=old_release)
            versions.wait_firing(cluster, OLD, __version__)
            stop(cluster, new[0])
            versions.wait_firing(cluster, OLD)

            # Forward again, and the old node stops by itself when the migrations are shown to it.
            cluster.add("again")
            migrate(empty_url)
            wait_until(lambda: "schema_is_newer" in back.process.logs(), 20, lambda: back.process.logs())
            wait_until(lambda: back.client.get("/readyz").status_code == 503, 20, "the old node is not ready")
            versions.wait_firing(cluster, __version__)
            stop(cluster, back)
        finish(cluster, load, versions.reader)
        assert load.unexpected == []
        assert len(load.submitted) > 20
        cluster.assert_accounted()
        kept = "SELECT count(DISTINCT id) FROM task_history WHERE state = 'completed' AND queue = 'load'"
        assert versions.reader.value(kept) == len(set(load.submitted))
        for log in tmp_path.glob("*.log"):
            assert "Traceback" not in log.read_text(), log.read_text()[-3000:]


def finish(cluster: Cluster, load: Load, reader: DatabaseReader) -> None:
    """Work off what is left of the load. A task whose claim was lost with a node waits for the end of its lease."""

    def is_done() -> bool:
        load.work(cluster.alive)
        return bool(reader.value("SELECT count(*) FROM tasks WHERE queue = 'load'") == 0)

    wait_until(is_done, 40, "the load is done")


@pytest.mark.chaos  # the contract tests cover the store; this needs four processes
def test_an_sqlite_file_is_rolled_back_and_upgraded_again(old_release: dict[str, str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'everbeat.db'}"

    def serve(name: str, env: dict[str, str] | None, *flags: str) -> tuple[ServerProcess, str]:
        port = free_port()
        arguments = ("serve", "--database-url", url, "--port", str(port), *flags)
        return ServerProcess(*arguments, folder=tmp_path, env=env, name=name), f"http://127.0.0.1:{port}"

    schedule = {"name": "job", "cron": "* * * * * *", "target": {"kind": "worker", "type": "t"}, "overlap": "allow"}
    reader = DatabaseReader(url)
    fired: list[int] = []

    def wait_firing() -> None:
        before = reader.value("SELECT count(*) FROM ticks")
        wait_until(lambda: reader.value("SELECT count(*) FROM ticks") > before, 20, "a tick")
        fired.append(reader.value("SELECT count(*) FROM ticks"))

    for name, env, flags, before in (
        ("old", old_release, (), None),
        ("new", None, ("--migrate",), None),
        ("back", old_release, (), ("--compatible-with", OLD)),
        ("again", None, (), ()),
    ):
        if before is not None:
            migrate(url, *before)
        process, base = serve(name, env, *flags)
        with process:
            process.wait_ready(f"{base}/readyz", 30)
            if name == "old":
                assert httpx.post(f"{base}/v1/schedules", json=schedule, trust_env=False).status_code == 201
            wait_firing()
            audit = httpx.get(f"{base}/v1/audit", trust_env=False).json()
            assert (audit["missing"], audit["doubled"]) == (0, 0)
            assert process.terminate() == 0
            assert "Traceback" not in process.logs()
    assert fired == sorted(set(fired))

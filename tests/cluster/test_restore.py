"""A backup of a running server is restored with the commands of docs/howto/backup-and-restore.md, and a server starts on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import pytest

from tests.cluster.fleet import DatabaseReader
from tests.cluster.harness import Node
from tests.support.postgres import PostgresAdmin, find_binaries
from tests.support.processes import wait_until

LEASE = {"worker": "w", "queues": ["default"], "max": 1, "wait_seconds": 10}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Databases:
    """The database that is lost, its backup, and the one that is restored."""

    def __init__(self, folder: Path, server: PostgresAdmin | None) -> None:
        self._folder = folder
        self._server = server
        self.lost = self._new("lost")
        self.restored = self._new("restored")

    def _new(self, name: str) -> str:
        return (
            f"sqlite:///{self._folder / name}.db" if self._server is None else self._server.url(self._server.create_database())
        )

    def back_up(self) -> None:
        if self._server is None:
            connection = apsw.Connection(self._path(self.lost))
            connection.execute("VACUUM INTO ?", (str(self._folder / "backup.db"),))
            connection.close()
        else:
            run(str(find_binaries() / "pg_dump"), "--format=custom", f"--file={self._folder / 'backup'}", self.lost)

    def restore(self) -> None:
        if self._server is None:
            Path(self._path(self.restored)).write_bytes((self._folder / "backup.db").read_bytes())
        else:
            backup = str(self._folder / "backup")
            run(str(find_binaries() / "pg_restore"), "--exit-on-error", "--no-owner", f"--dbname={self.restored}", backup)

    @staticmethod
    def _path(url: str) -> str:
        return url.removeprefix("sqlite:///")

    def close(self) -> None:
        if self._server is not None:
            for url in (self.lost, self.restored):
                self._server.drop_database(urlsplit(url).path.removeprefix("/"))


def claim_one(node: Node) -> dict[str, Any]:
    (task,) = node.client.post("/v1/worker/claim", json=LEASE).json()["tasks"]
    found: dict[str, Any] = task
    return found


def status_of(node: Node, task: dict[str, Any]) -> str:
    done = {"worker": "w", "results": [{"id": task["id"], "fence": task["fence"]}]}
    return str(node.client.post("/v1/worker/complete", json=done).json()["results"][0]["status"])


@pytest.mark.parametrize(
    ("dialect", "gap"), [pytest.param("sqlite", "skip", marks=pytest.mark.chaos), ("postgres", "catch-up")]
)
def test_after_a_restore_ticks_are_recorded_once_and_old_fences_are_refused(
    request: pytest.FixtureRequest, tmp_path: Path, dialect: str, gap: str
) -> None:
    server = request.getfixturevalue("postgres_server") if dialect == "postgres" else None
    databases = Databases(tmp_path, server)
    node, after = Node("before", databases.lost, tmp_path), Node("after", databases.restored, tmp_path)
    try:
        lost = DatabaseReader(databases.lost)
        node.start()
        schedule = {
            "cron": "* * * * * *",
            "overlap": "allow",
            "catch_up": "all",
            "target": {"kind": "worker", "queue": "q", "type": "t"},
        }
        assert node.client.put("/v1/schedules/job", json=schedule).status_code == 201
        node.client.post("/v1/tasks", json={"type": "t"})
        wait_until(lambda: lost.value("SELECT count(*) FROM ticks WHERE outcome = 'fired'") >= 2, 20, "ticks before the backup")
        databases.back_up()

        # What the backup does not know: a lease with a higher fence, and more ticks.
        first = claim_one(node)
        released = {"worker": "w", "leases": [{"id": first["id"], "fence": first["fence"]}]}
        assert node.client.post("/v1/worker/release", json=released).status_code == 200
        stale = claim_one(node)
        ticks = lost.value("SELECT count(*) FROM ticks")
        wait_until(lambda: lost.value("SELECT count(*) FROM ticks") >= ticks + 3, 20, "ticks after the backup")
        node.process.kill9()

        databases.restore()
        reader = DatabaseReader(databases.restored)
        shown = run(sys.executable, "-m", "everbeat", "restored", "--gap", gap, "--database-url", databases.restored)
        assert "raised the fences of" in shown
        after.start()
        again = claim_one(after)
        assert again["id"] == stale["id"]
        assert again["fence"] > stale["fence"]
        assert status_of(after, stale) == "stale"
        assert status_of(after, again) == "ok"

        fired = "SELECT count(*) FROM ticks WHERE outcome = 'fired'"
        wait_until(lambda: reader.value(fired) >= 6, 30, "ticks after the restore")
        wait_until(lambda: after.get("/v1/audit")["missing"] == 0, 30, "all ticks are recorded")
        audit = after.get("/v1/audit")
        assert (audit["missing"], audit["doubled"]) == (0, 0)
        assert audit["expected"] == audit["fired"] + sum(audit["skipped"].values())
        gap_ticks = after.get("/v1/schedules/job/ticks", limit=1000)["items"]
        skipped = [tick for tick in gap_ticks if tick["outcome"] == "skipped"]
        assert [tick["reason"] for tick in skipped] == (["paused"] if gap == "skip" else [])
    finally:
        node.close()
        after.close()
        databases.close()


def test_restored_refuses_while_a_server_runs(sqlite_node: tuple[str, Node]) -> None:
    url, _ = sqlite_node
    command = [sys.executable, "-m", "everbeat", "restored", "--gap", "skip", "--database-url", url]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "stop them first" in refused.stderr

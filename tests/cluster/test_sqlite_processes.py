"""Real processes on one SQLite file: a killed process, two concurrent processes, and a file that is not a database."""

from __future__ import annotations

from pathlib import Path

import apsw

from tests.cluster.harness import running_cluster
from tests.support.processes import ServerProcess, wait_until


def _fired(path: Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(next(connection.execute("SELECT count(*) FROM ticks WHERE outcome = 'fired'"))[0])
    finally:
        connection.close()


def test_a_restarted_process_continues_after_a_kill(sqlite_path: Path, tmp_path: Path) -> None:
    with running_cluster(f"sqlite:///{sqlite_path}", tmp_path) as cluster:
        for _ in range(3):
            before = _fired(sqlite_path) if sqlite_path.exists() else 0
            node = cluster.add()
            cluster.register(20)
            wait_until(lambda before=before: _fired(sqlite_path) >= before + 60, 30, "ticks")  # type: ignore[misc]
            node.process.kill9()
        cluster.add()
        wait_until(lambda: cluster.alive.get("/v1/cluster")["unowned"] == 0, 15, "ownership")
        cluster.assert_accounted()


def test_two_processes_on_one_file_fire_each_tick_once(sqlite_path: Path, tmp_path: Path) -> None:
    with running_cluster(f"sqlite:///{sqlite_path}", tmp_path) as cluster:
        cluster.add()
        cluster.add()
        cluster.wait_for_owners(2)
        cluster.register(30)
        wait_until(lambda: _fired(sqlite_path) >= 120, 30, "ticks")
        cluster.assert_accounted()
        assert sqlite_path.stat().st_mode & 0o077 == 0


def test_a_file_that_is_not_a_database_is_rejected_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"these are my notes, not a database" * 200)
    with ServerProcess("serve", "--database-url", f"sqlite:///{path}", folder=tmp_path) as process:
        assert process.wait_exit(20) == 1
    assert "not a database" in process.logs()
    assert "Traceback" not in process.logs()
    assert path.read_bytes().startswith(b"these are my notes")

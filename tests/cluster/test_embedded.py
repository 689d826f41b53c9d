"""Several processes that embed Everbeat on one database: each tick is fired by one of them and handled once."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.cluster.fleet import PYTHON_PATH, DatabaseReader, Journal
from tests.support.postgres import PostgresServer
from tests.support.processes import ServerProcess, wait_until


def _ticks(reader: DatabaseReader) -> dict[object, list[float]]:
    """Return the instants for which each schedule fired."""
    found: dict[object, list[float]] = defaultdict(list)
    for schedule, at in reader.rows("SELECT schedule_id, scheduled_for FROM ticks WHERE outcome = 'fired'"):
        found[schedule].append(at / 1e6 if isinstance(at, int) else at)
    return {schedule: sorted(instants) for schedule, instants in found.items()}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_each_tick_is_fired_and_handled_once_although_a_process_is_killed(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """On PostgreSQL, the database server also crashes before the process is killed."""
    server: PostgresServer | None = None if database == "sqlite" else request.getfixturevalue("private_postgres")
    url = f"sqlite:///{tmp_path / 'x.sqlite'}" if server is None else server.url(server.create_database())
    reader, journal = DatabaseReader(url), Journal(tmp_path)
    processes = [
        ServerProcess(
            folder=tmp_path,
            name=f"embedded-{number}",
            command=(sys.executable, "-m", "tests.cluster.embedded_app"),
            env={
                "EVERBEAT_URL": url,
                "EVERBEAT_LEASE_SECONDS": "3",
                "EVERBEAT_TEST_JOURNAL": str(journal.path),
                "PYTHONPATH": PYTHON_PATH,
            },
        )
        for number in range(3)
    ]

    def logs() -> str:
        return "".join(f"\n--- {process.name}\n{process.logs()[-2000:]}" for process in processes)

    try:
        for process in processes:
            process.start()
        wait_until(lambda: len(journal.events(event="end")) > 10, 25, lambda: f"tasks are handled{logs()}")
        if server is not None:
            server.restart("immediate")
        # Kill the process while a handler runs, so that a task must run again.
        before = len(journal.events(event="start"))
        started = wait_until(lambda: journal.events(event="start")[before:], 20, logs)
        victim = next(process for process in processes if process.pid == started[-1]["pid"])
        victim.kill9()
        killed_at = time.time()
        wait_until(lambda: _has_no_lease_of(reader, victim.pid), 25, lambda: f"tasks of the killed process are done{logs()}")
        wait_until(
            lambda: all(instants[-1] > killed_at + 2 for instants in _ticks(reader).values()),
            25,
            lambda: f"all schedules continue{logs()}",
        )
        for process in processes:
            assert process is victim or process.terminate(15) == 0, process.logs()
    finally:
        for process in processes:
            process.kill9()
    _check(reader, journal)
    assert all("Traceback" not in process.logs() for process in processes), logs()


def _has_no_lease_of(reader: DatabaseReader, pid: int) -> bool:
    owners = reader.rows("SELECT lease_owner FROM tasks WHERE state = 'running'")
    return not any(f":{pid}:" in owner for (owner,) in owners)


def _check(reader: DatabaseReader, journal: Journal) -> None:
    ticks = _ticks(reader)
    assert len(ticks) == 5
    for instants in ticks.values():
        assert instants == [instants[0] + second for second in range(len(instants))], "ticks are missing or doubled"
    tasks = [row[0] for row in reader.rows("SELECT task_id FROM ticks WHERE outcome = 'fired'")]
    assert len(set(tasks)) == len(tasks)
    waiting = {row[0] for row in reader.rows("SELECT id FROM tasks")}
    done = [task for task in tasks if task not in waiting]
    seen = reader.assert_explained(done, outcomes=frozenset({"lost", "released"}))
    assert len(reader.history()) == len(done)
    lost = Counter(str(one.id) for one in reader.ended_attempts() if one.outcome == "lost")
    handled = Counter(one["task"] for one in journal.events(event="end"))
    for task in map(str, done):
        assert 1 <= handled[task] <= 1 + lost[task], (task, handled[task], lost[task])
    print(f"{len(done)} ticks handled, {dict(seen)}, {len(waiting)} not yet")

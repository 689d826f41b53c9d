"""Several processes that embed Everbeat on one database: each tick is fired by one of them and handled once."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.cluster.fleet import REPOSITORY, Books, Journal
from tests.support.processes import ServerProcess, wait_until


def _ticks(books: Books) -> dict[object, list[float]]:
    """The instants that each schedule fired for."""
    found: dict[object, list[float]] = defaultdict(list)
    for schedule, at in books.rows("SELECT schedule_id, scheduled_for FROM ticks WHERE outcome = 'fired'"):
        found[schedule].append(at / 1e6 if isinstance(at, int) else at)
    return {schedule: sorted(instants) for schedule, instants in found.items()}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_each_tick_is_fired_and_handled_once_though_a_process_is_killed(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'x.sqlite'}" if database == "sqlite" else request.getfixturevalue("postgres_url")
    books, journal = Books(url), Journal(tmp_path)
    processes = [
        ServerProcess(
            folder=tmp_path,
            name=f"embedded-{number}",
            command=(sys.executable, "-m", "tests.cluster.embedded_app"),
            env={
                "EVERBEAT_URL": url,
                "EVERBEAT_LEASE_SECONDS": "3",
                "EVERBEAT_TEST_JOURNAL": str(journal.path),
                "PYTHONPATH": str(REPOSITORY),
            },
        )
        for number in range(3)
    ]

    def logs() -> str:
        return "".join(f"\n--- {process.name}\n{process.logs()[-2000:]}" for process in processes)

    try:
        for process in processes:
            process.start()
        wait_until(lambda: len({one["pid"] for one in journal.events(event="end")}) == 3, 25, lambda: f"three at work{logs()}")
        # In the middle of a handler, so that there is something to do again.
        before = len(journal.events(event="start"))
        wait_until(
            lambda: any(one["pid"] == processes[1].pid for one in journal.events(event="start")[before:]), 20, lambda: logs()
        )
        processes[1].kill9()
        seen = len(journal.events(event="end"))
        wait_until(lambda: len(journal.events(event="end")) > seen + 25, 25, lambda: f"going on{logs()}")
        wait_until(
            lambda: books.value("SELECT count(*) FROM tasks WHERE lease_owner LIKE '%' AND state = 'running' AND attempt > 1") == 0
            and _is_done(books, processes[1].pid),
            20,
            lambda: f"what the dead one held{logs()}",
        )
        for process in (processes[0], processes[2]):
            assert process.terminate(15) == 0, process.logs()
    finally:
        for process in processes:
            process.kill9()
    _check(books, journal)
    assert all("Traceback" not in process.logs() for process in processes), logs()


def _is_done(books: Books, pid: int) -> bool:
    return not any(f":{pid}:" in str(owner) for (owner,) in books.rows("SELECT lease_owner FROM tasks WHERE state = 'running'"))


def _check(books: Books, journal: Journal) -> None:
    ticks = _ticks(books)
    assert len(ticks) == 5
    for instants in ticks.values():
        assert instants == [instants[0] + second for second in range(len(instants))], "ticks are missing or doubled"
    tasks = [row[0] for row in books.rows("SELECT task_id FROM ticks WHERE outcome = 'fired'")]
    assert len(set(tasks)) == len(tasks)
    waiting = {row[0] for row in books.rows("SELECT id FROM tasks")}
    done = [task for task in tasks if task not in waiting]
    seen = books.assert_explained(done, outcomes=frozenset({"lost", "released"}))
    assert len(books.done()) == len(done)
    lost = Counter(str(one.id) for one in books.tried() if one.outcome == "lost")
    handled = Counter(one["task"] for one in journal.events(event="end"))
    for task in map(str, done):
        assert 1 <= handled[task] <= 1 + lost[task], (task, handled[task], lost[task])
    print(f"{len(done)} ticks handled, {dict(seen)}, {len(waiting)} not yet")

"""The interface of a database under test: recreate it, load rows, do raw writes, and read the ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.support.processes import ServerProcess, free_port

from bench.queues import RawQueue
from bench.rows import Row

BATCH = 1000
_LOG_TAIL = 4000


class Scale(NamedTuple):
    """How much to measure. `is_quick`: smaller sizes. Rates are the median of `rounds` rounds."""

    is_quick: bool
    rounds: int


class Batch(NamedTuple):
    """The ticks that one transaction fired, read from the ledger."""

    fired_at: datetime
    first_due_at: datetime
    last_due_at: datetime
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used


class BenchDatabase(Protocol):
    """A database under test. `raw_*` are the baselines: the plain driver, without Everbeat code in the measured time."""

    name: str
    folder: Path

    @property
    def url(self) -> str:
        """The value for `everbeat serve --database-url`."""

    @property
    def raw_queue(self) -> RawQueue:
        """The baseline for tasks."""

    async def recreate(self) -> None:
        """Replace the database by an empty, migrated one."""

    async def close(self) -> None:
        """Remove everything."""

    async def now(self) -> datetime:
        """Return the time of the database clock."""

    async def load(self, rows: Sequence[Row]) -> None:
        """Insert schedules."""

    async def load_daily(self, base: Row, count: int, now: datetime) -> None:
        """Insert `count` daily cron schedules, spread over the day except for the hour around now."""

    async def checkpoint(self) -> None:
        """Update the statistics and write a checkpoint, so that all rounds start in the same state."""

    async def raw_fire(self, tick_for: timedelta) -> float:
        """Insert ledger rows and tasks and advance all schedules, in batches. Returns the seconds taken."""

    async def rows(self) -> list[Row]:
        """Return all schedules as the driver returns them, for raw_register."""

    async def raw_register(self, rows: Sequence[Row], clients: int) -> float:
        """Insert these rows in batches over `clients` connections. Returns the seconds taken."""

    async def count_ticks(self) -> int:
        """Return the number of ledger rows."""

    async def batches(self) -> list[Batch]:
        """Return the batches of the ledger, in the order of firing."""

    async def lags(self, from_: datetime, to: datetime) -> list[float]:
        """Return fired_at - scheduled_for, in seconds, of the fired ticks of a window."""

    async def heartbeat_age(self) -> float:
        """Return the seconds since the newest heartbeat, or 0 if there is none."""

    async def log_statements(self) -> bool:
        """Log every statement of new sessions. Returns False if the database cannot."""

    def statements(self) -> int:
        """Return the number of statements that Everbeat's sessions have run, from the database log."""

    def sibling(self, name: str) -> BenchDatabase:
        """Return another database of the same server. Closing it removes only that database."""

    async def count_live(self) -> int:
        """Return the number of tasks that have not ended."""

    async def count_completed(self) -> int:
        """Return the number of completed tasks in the history."""

    async def fill_history(self, count: int) -> None:
        """Insert `count` completed tasks of the last 30 days, and checkpoint."""

    def database_cpu_seconds(self) -> float:
        """Return the CPU time of the database server's processes so far, or 0 if there are none."""


@contextlib.contextmanager
def serving(database: BenchDatabase, *args: str) -> Iterator[tuple[ServerProcess, int]]:
    """Run `everbeat serve` on the database. Yields the process, which is ready, and its port."""
    port = free_port()
    process = ServerProcess(
        "serve",
        *("--roles", "api,scheduler", "--database-url", database.url, "--port", str(port), "--log-format", "json", *args),
        folder=database.folder,
        name=f"everbeat-{port}",
    )
    with process:
        process.wait_ready(f"http://127.0.0.1:{port}/readyz", 30)
        try:
            yield process, port
        except BaseException:
            print(process.logs()[-_LOG_TAIL:])
            raise
        process.terminate()


def resident_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of the process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def family_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children, including those that have ended."""
    total = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended: counted below
                total += cpu_seconds(int(child))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return total + sum(map(int, fields[11:15])) / 100

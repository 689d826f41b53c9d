"""What a benchmark needs of a database, whichever it is: a fresh one, rows put in, raw writes, and the ledger read back."""

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
    """How much to measure: a quick look takes smaller sizes; rates are the median of so many rounds."""

    is_quick: bool
    rounds: int


class Batch(NamedTuple):
    """A batch as the ledger shows it: the ticks one transaction fired."""

    fired_at: datetime
    first_due_at: datetime
    last_due_at: datetime
    count: int  # type: ignore[assignment]  # it hides tuple.count, which nobody calls on a batch


class BenchDatabase(Protocol):
    """One store under test. `raw_*` are the baselines: the plain driver, and no code of Everbeat between the clocks."""

    name: str
    folder: Path

    @property
    def url(self) -> str:
        """What `everbeat serve --database-url` gets."""

    @property
    def raw_queue(self) -> RawQueue:
        """The baseline of tasks."""

    async def fresh(self) -> None:
        """An empty migrated database."""

    async def close(self) -> None:
        """Remove everything."""

    async def now(self) -> datetime:
        """The database's clock."""

    async def load(self, rows: Sequence[Row]) -> None:
        """Put schedules in."""

    async def load_daily(self, base: Row, count: int, now: datetime) -> None:
        """Put in that many daily crons, spread over the day but for the hour around now."""

    async def checkpoint(self) -> None:
        """Statistics and a checkpoint, so that every round begins alike."""

    async def raw_fire(self, tick_for: timedelta) -> float:
        """Ledger rows, tasks and moved-on schedules for all schedules, in batches; the seconds it took."""

    async def rows(self) -> list[Row]:
        """All schedules as the driver gives them, for raw_register."""

    async def raw_register(self, rows: Sequence[Row], clients: int) -> float:
        """Insert these rows in batches over so many connections; the seconds it took."""

    async def count_ticks(self) -> int:
        """How many ledger rows there are."""

    async def batches(self) -> list[Batch]:
        """The ledger by transaction, in the order of firing."""

    async def lags(self, from_: datetime, to: datetime) -> list[float]:
        """fired_at - scheduled_for in seconds for the fired ticks of a window."""

    async def heartbeat_age(self) -> float:
        """Seconds since the newest heartbeat; 0 if there is none yet."""

    async def log_statements(self) -> bool:
        """Log every statement of new sessions from now on, if the database can."""

    def statements(self) -> int:
        """How many statements Everbeat's sessions have run, as the database's log has it."""

    def sibling(self, name: str) -> BenchDatabase:
        """Another database of the same server; closing it removes only that."""

    async def count_live(self) -> int:
        """How many tasks have not ended."""

    async def count_completed(self) -> int:
        """How many completed tasks the history has."""

    async def fill_history(self, count: int) -> None:
        """Put in so many completed tasks of the last 30 days, and settle."""

    def database_cpu_seconds(self) -> float:
        """CPU that the database's own processes have used so far; none if it has none."""


@contextlib.contextmanager
def serving(database: BenchDatabase, *args: str) -> Iterator[tuple[ServerProcess, int]]:
    """A real `everbeat serve` on the site, ready; and its port."""
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
    """User and system time of the process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def family_cpu_seconds(pid: int) -> float:
    """The same of a process and its children, those that have ended included."""
    total = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile: counted below
                total += cpu_seconds(int(child))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return total + sum(map(int, fields[11:15])) / 100

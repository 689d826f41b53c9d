"""Carries out the faults of the database. Each is undone before it returns, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from tests.chaos.cluster import ChaosCluster
from tests.chaos.plan import PlannedFault
from tests.support.diskshim import DiskFault
from tests.support.postgres import PostgresServer

_HOT_TABLES = ("tasks", "schedules", "ticks")


class PostgresFaults:
    def __init__(self, cluster: ChaosCluster) -> None:
        assert cluster.postgres is not None
        self._server: PostgresServer = cluster.postgres
        self._cluster = cluster

    def database_restart(self, fault: PlannedFault) -> Any:
        self._server.stop("fast")
        time.sleep(fault.seconds)
        self._server.start()
        return {"mode": "fast"}

    def database_crash(self, fault: PlannedFault) -> Any:
        self._server.stop("immediate")
        time.sleep(fault.seconds)
        self._server.start()
        return {"mode": "immediate"}

    def database_stall(self, fault: PlannedFault) -> Any:
        """All processes of the server stand still."""
        pids = _family(self._server.pid)
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        time.sleep(fault.seconds)
        for pid in pids:
            _signal(pid, signal.SIGCONT)
        return {"processes": len(pids)}

    def database_lock(self, fault: PlannedFault) -> Any:
        table = _HOT_TABLES[fault.victim % len(_HOT_TABLES)]
        script = f"BEGIN; LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE; SELECT pg_sleep({fault.seconds}); COMMIT"
        return self._run(script) and {"table": table}

    def database_sessions_killed(self, fault: PlannedFault) -> Any:
        script = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'chaos' AND pid <> pg_backend_pid()"
        return self._run(script) and {"sessions": "all"}

    def database_connections(self, fault: PlannedFault) -> Any:
        """Take every free connection. The sessions that nodes have stay open."""
        return {"taken": asyncio.run(_take_connections(self._server.url("chaos"), fault.seconds))}

    def database_read_only(self, fault: PlannedFault) -> Any:
        """As on a standby: new sessions cannot write, and the old ones are ended."""
        try:
            self._run("ALTER DATABASE chaos SET default_transaction_read_only = on")
            self.database_sessions_killed(fault)
            time.sleep(fault.seconds)
        finally:
            self._run("ALTER DATABASE chaos RESET default_transaction_read_only", database="postgres")
            self.database_sessions_killed(fault)
        return {"read_only_seconds": fault.seconds}

    def database_disk_full(self, fault: PlannedFault) -> Any:
        with self._cluster.disk.failing(DiskFault.FULL):
            time.sleep(fault.seconds)
        return {"error": "ENOSPC"}

    def database_clock(self, fault: PlannedFault) -> Any:
        """The clock of the database is stepped, and stepped back."""
        self._cluster.database_clock.set_offset(fault.value)
        time.sleep(fault.seconds)
        self._cluster.database_clock.set_offset(0)
        return {"offset": fault.value}

    def _run(self, script: str, database: str = "chaos") -> bool:
        async def run() -> None:
            connection = await asyncpg.connect(self._server.url(database), timeout=10)
            try:
                await connection.execute(script, timeout=30)
            finally:
                connection.terminate()

        asyncio.run(run())
        return True


class SqliteFaults:
    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self._path = cluster.url.removeprefix("sqlite:///")

    def database_writer_lock(self, fault: PlannedFault) -> Any:
        """Another process holds the write lock."""
        return self._hold("BEGIN IMMEDIATE", fault.seconds)

    def database_reader(self, fault: PlannedFault) -> Any:
        """A reader pins the log, so that it grows."""
        return self._hold("BEGIN; SELECT count(*) FROM schedules", fault.seconds)

    def database_disk_full(self, fault: PlannedFault) -> Any:
        return self._fail(DiskFault.FULL, fault.seconds)

    def database_fsync(self, fault: PlannedFault) -> Any:
        return self._fail(DiskFault.FSYNC, fault.seconds)

    def _fail(self, kind: DiskFault, seconds: float) -> Any:
        with self._cluster.disk.failing(kind):
            time.sleep(seconds)
        return {"error": kind.name}

    def _hold(self, begin: str, seconds: float) -> Any:
        connection = apsw.Connection(self._path)
        try:
            connection.set_busy_timeout(10_000)
            connection.execute(begin).fetchall()
            time.sleep(seconds)
            connection.execute("ROLLBACK")
        finally:
            connection.close()
        return {"held": begin}


def _family(pid: int) -> list[int]:
    """Return a process and its children, the parent first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def _take_connections(url: str, seconds: float) -> int:
    taken: list[asyncpg.Connection] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            taken.append(await asyncpg.connect(url, timeout=2))
        except (asyncpg.PostgresError, OSError, TimeoutError):
            await asyncio.sleep(0.05)
    for connection in taken:
        connection.terminate()
    return len(taken)

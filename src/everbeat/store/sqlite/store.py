"""The SQLite store. Each verb runs the block with its name. A write is one immediate transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from everbeat.store.base import Observer
from everbeat.store.notices import Notices
from everbeat.store.sqlite.alerts import SqliteAlerts
from everbeat.store.sqlite.archives import SqliteArchives
from everbeat.store.sqlite.audit_findings import SqliteAuditFindings
from everbeat.store.sqlite.bulk_operations import SqliteBulkOperations
from everbeat.store.sqlite.calendars import SqliteCalendars
from everbeat.store.sqlite.checks import SqliteChecks
from everbeat.store.sqlite.dead_letters import SqliteDeadLetters
from everbeat.store.sqlite.endpoints import SqliteEndpoints
from everbeat.store.sqlite.keys import SqliteKeys
from everbeat.store.sqlite.leases import SqliteLeases
from everbeat.store.sqlite.ledger_days import SqliteLedgerDays
from everbeat.store.sqlite.loop_leases import SqliteLoopLeases
from everbeat.store.sqlite.maintenance import SqliteMaintenance
from everbeat.store.sqlite.partitions import SqlitePartitions
from everbeat.store.sqlite.pauses import SqlitePauses
from everbeat.store.sqlite.retention import SqliteRetention
from everbeat.store.sqlite.samples import SqliteSamples
from everbeat.store.sqlite.schedules import SqliteSchedules
from everbeat.store.sqlite.service_levels import SqliteServiceLevels
from everbeat.store.sqlite.tenants import SqliteTenants
from everbeat.store.sqlite.ticks import SqliteTicks
from everbeat.store.sqlite.workers import SqliteWorkers
from everbeat.store.values import Listener, Notice, PoolName


class SqliteStore(
    SqliteSchedules,
    SqliteTicks,
    SqliteDeadLetters,
    SqliteLeases,
    SqlitePartitions,
    SqliteCalendars,
    SqliteEndpoints,
    SqliteChecks,
    SqliteTenants,
    SqliteKeys,
    SqliteWorkers,
    SqlitePauses,
    SqliteBulkOperations,
    SqliteAuditFindings,
    SqliteLoopLeases,
    SqliteLedgerDays,
    SqliteAlerts,
    SqliteMaintenance,
    SqliteArchives,
    SqliteRetention,
    SqliteSamples,
    SqliteServiceLevels,
):
    """The Store contract on one SQLite file. It uses the clock of the process."""

    dialect = "sqlite"

    def __init__(self, path: str | Path, *, observer: Observer | None = None) -> None:
        super().__init__(Path(path), observer)
        self.description = str(path)
        self._notices = Notices()

    def pool(self, pool: PoolName) -> Self:
        """The store itself: SQLite has only one writer, so separate pools do not help."""
        return self

    async def open(self) -> None:
        if self._path.exists():
            await self._connections.read("open", lambda session: session.rows(self._blocks["migration_exists"]))

    async def close(self) -> None:
        await self._notices.close()
        await self._connections.close()

    def subscribe(self, listener: Listener) -> None:
        self._notices.subscribe(listener)

    def publish(self, notice: Notice) -> None:
        self._notices.publish(notice)

    def publish_to_others(self, notice: Notice) -> None:
        self._notices.publish_to_others(notice)

    def event_stream_listen(self, _on_message: Callable[[str], None]) -> bool:
        return False

    async def event_stream_send(self, _message: str) -> None:
        """Does nothing: SQLite has no messages between processes."""

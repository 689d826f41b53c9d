"""The PostgreSQL store. Each verb runs the block with its name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from everbeat.core.errors import StoreLocked, StoreUnavailable
from everbeat.store.base import Observer
from everbeat.store.postgres.alerts import PostgresAlerts
from everbeat.store.postgres.archives import PostgresArchives
from everbeat.store.postgres.audit_findings import PostgresAuditFindings
from everbeat.store.postgres.base import PostgresBase, PostgresDatabase
from everbeat.store.postgres.bulk_operations import PostgresBulkOperations
from everbeat.store.postgres.calendars import PostgresCalendars
from everbeat.store.postgres.checks import PostgresChecks
from everbeat.store.postgres.dead_letters import PostgresDeadLetters
from everbeat.store.postgres.endpoints import PostgresEndpoints
from everbeat.store.postgres.keys import PostgresKeys
from everbeat.store.postgres.leases import PostgresLeases
from everbeat.store.postgres.ledger_days import PostgresLedgerDays
from everbeat.store.postgres.loop_leases import PostgresLoopLeases
from everbeat.store.postgres.partitions import PostgresPartitions
from everbeat.store.postgres.pauses import PostgresPauses
from everbeat.store.postgres.retention import PostgresRetention
from everbeat.store.postgres.samples import PostgresSamples
from everbeat.store.postgres.schedules import PostgresSchedules
from everbeat.store.postgres.service_levels import PostgresServiceLevels
from everbeat.store.postgres.tenants import PostgresTenants
from everbeat.store.postgres.ticks import PostgresTicks
from everbeat.store.postgres.workers import PostgresWorkers
from everbeat.store.values import Listener, Notice, PoolName


class PostgresStore(
    PostgresSchedules,
    PostgresTicks,
    PostgresDeadLetters,
    PostgresLeases,
    PostgresPartitions,
    PostgresCalendars,
    PostgresEndpoints,
    PostgresChecks,
    PostgresTenants,
    PostgresKeys,
    PostgresWorkers,
    PostgresPauses,
    PostgresBulkOperations,
    PostgresAuditFindings,
    PostgresLoopLeases,
    PostgresLedgerDays,
    PostgresArchives,
    PostgresAlerts,
    PostgresRetention,
    PostgresSamples,
    PostgresServiceLevels,
):
    """The Store contract on PostgreSQL 14 and later."""

    dialect = "postgres"

    def __init__(self, url: str, *, listen: bool = True, observer: Observer | None = None, **options: Any) -> None:
        super().__init__(PostgresDatabase(url, listen=listen, observer=observer, **options), "api")

    def pool(self, pool: PoolName) -> PostgresStore:
        return PostgresPoolView(self._database, pool)

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    def subscribe(self, listener: Listener) -> None:
        self._database.notices.subscribe(listener)

    def publish(self, notice: Notice) -> None:
        self._database.notices.publish(notice)

    def publish_to_others(self, notice: Notice) -> None:
        self._database.notices.publish_to_others(notice)

    def event_stream_listen(self, on_message: Callable[[str], None]) -> bool:
        self._database.message_listeners.append(on_message)
        return self._database.is_listening

    async def event_stream_send(self, message: str) -> None:
        with contextlib.suppress(
            StoreUnavailable, StoreLocked
        ):  # the event is lost; the state that it reports is in the database
            await self._read("event_stream_send", message=message)


class PostgresPoolView(PostgresStore):
    """A view of a store that runs every verb on another pool. The connections are shared; only the store closes them."""

    def __init__(self, database: PostgresDatabase, pool_name: PoolName) -> None:
        PostgresBase.__init__(self, database, pool_name)

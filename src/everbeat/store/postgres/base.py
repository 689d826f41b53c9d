"""The base of all verbs of the PostgreSQL store: the database, the connection pool, and how a block is run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import EverbeatError, StoreLocked, StoreRefused, StoreUnavailable
from everbeat.store.base import Observer
from everbeat.store.migrate import load_migrations
from everbeat.store.notices import Notices
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.connections import Connection, PostgresConnections, execute_on
from everbeat.store.postgres.hosts import describe_url
from everbeat.store.queries import load_numbered
from everbeat.store.rows import (
    months_of,
)
from everbeat.store.shared import SharedVerbs
from everbeat.store.values import (
    IdempotentResponse,
    Notice,
    PoolName,
)

T = TypeVar("T")

_PACKAGE = "everbeat.store.postgres"
_MISSING_PARTITION = "no partition of relation"


class PostgresDatabase:
    """The state that a store shares with its views on other pools: connections, statements, notices, and existing months."""

    def __init__(self, url: str, *, listen: bool, observer: Observer | None, **options: Any) -> None:
        self.description = describe_url(url)
        self.connections = PostgresConnections(url, observer=observer, **options)
        self.queries = load_numbered(_PACKAGE)
        self.migrations = load_migrations(_PACKAGE)
        self.notices = Notices(self._send_notice)
        self.message_listeners: list[Callable[[str], None]] = []
        self.is_listening = listen
        # Months whose tables exist, as far as this process has seen.
        self.months: set[datetime] = set()
        self._listener: asyncio.Task[None] | None = None
        self._observer = observer

    async def open(self) -> None:
        if self.is_listening and self._listener is None:
            self._listener = asyncio.create_task(
                self.connections.listen(self.notices.notify_local, self._on_listen_error, self._on_message)
            )

    async def close(self) -> None:
        with contextlib.suppress(EverbeatError):
            await self.notices.close()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        await self.connections.close()

    async def _send_notice(self, notice: Notice) -> None:
        with contextlib.suppress(StoreUnavailable, StoreLocked):  # the other nodes find the change with their next scan
            payload = f"{notice.value}:{self.connections.identity}"
            await self.connections.fetch("api", self.queries["notice_send"], payload=payload)

    def _on_listen_error(self, _error: Exception) -> None:
        if self._observer is not None:
            self._observer("listen", 0.0, True)

    def _on_message(self, message: str) -> None:
        for on_message in self.message_listeners:
            on_message(message)


class PostgresBase(SharedVerbs):
    """Runs blocks on one connection pool. Every verb uses this pool, except ownership, which has a dedicated connection."""

    def __init__(self, database: PostgresDatabase, pool_name: PoolName) -> None:
        self._database = database
        self._connections = database.connections
        self._queries = database.queries
        self._migrations = database.migrations
        self._pool_name = pool_name
        self.description = database.description

    async def clock(self, *, now: datetime | None = None) -> datetime:
        (row,) = await self._read("clock", now=now)
        moment: datetime = row["moment"]
        return moment

    async def _read(self, block: str, /, **values: Any) -> list[asyncpg.Record]:
        return await self._connections.fetch(self._pool_name, self._queries[block], **values)

    async def _change(self, block: str, /, **values: Any) -> int:
        return await self._connections.execute(self._pool_name, self._queries[block], **values)

    async def _keep_response(
        self, connection: Connection, tenant_id: UUID, response: IdempotentResponse, now: datetime | None
    ) -> bool:
        """Store a response. Returns False if its key is in use."""
        values = {**msgspec.structs.asdict(response), "tenant_id": tenant_id, "now": now}
        return await execute_on(connection, self._queries["idempotent_response_keep"], **values) == 1

    async def _ensure_months(self, instants: Iterable[datetime]) -> None:
        """Create missing month tables. Ticks can be in any month: after a long outage or a clock change, or in a backfill."""
        missing = months_of(instants) - self._database.months
        if missing:
            await self.month_ensure(sorted(missing))

    async def _with_months(self, instants: Sequence[datetime], write: Callable[[], Awaitable[T]]) -> T:
        """Write ledger rows for these times. Repeats the write once if another node has dropped a month table meanwhile."""
        await self._ensure_months(instants)
        try:
            return await write()
        except StoreRefused as error:
            if _MISSING_PARTITION not in str(error):
                raise
        self._database.months.clear()
        await self._ensure_months(instants)
        return await write()

    async def _with_current_month(self, now: datetime | None, write: Callable[[], Awaitable[T]]) -> T:
        """Write rows of the current month. The current time is queried only if the write fails because the table is missing."""
        try:
            return await self._retry(write)
        except StoreRefused as error:
            if _MISSING_PARTITION not in str(error):
                raise
        self._database.months.clear()
        return await self._with_months([await self.clock(now=now)], write)

    async def _retry(self, write: Callable[[], Awaitable[T]]) -> T:
        return await self._connections.retry(self._pool_name, write)

    def _transaction(self, verb: str, **settings: str) -> contextlib.AbstractAsyncContextManager[Connection]:
        return self._connections.transaction(self._pool_name, verb, timeout_seconds=None, **settings)

    async def _change_with_audit_log(
        self, block: str, audit_log: Sequence[AuditLogEntry], now: datetime | None, /, **values: Any
    ) -> int:
        async def write() -> int:
            async with self._transaction(block) as connection:
                changed = await execute_on(connection, self._queries[block], **values)
                if changed:
                    await write_audit_log(connection, self._queries, audit_log, now)
            return changed

        return await self._retry(write)

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        rows = await self._read("month_ensure", months=sorted(months_of(months)))
        self._database.months |= months_of(months)
        return [row["name"] for row in rows]

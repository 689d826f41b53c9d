"""The outbox table, as relays use it: locking shards, reading and removing rows, and waiting for inserts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from everbeat.core.errors import EverbeatError
from everbeat.outbox.statements import numbered_query

CHANNEL = "everbeat_outbox"
# Everything that a relay does with locked shards must be done in this time. PostgreSQL releases them after the second time.
HOLD_SECONDS = 20.0
IDLE_TRANSACTION_SECONDS = 30.0
MAX_SHARDS_LOCKED = 16

_CONNECT_SECONDS = 10.0
_STATEMENT_SECONDS = 15.0
_UNDEFINED_TABLE = "42P01"
_NO_PRIVILEGE = "42501"
_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class OutboxRow(NamedTuple):
    """A row: its id, and the JSON of its task with the id as idempotency key."""

    id: UUID
    task: bytes


class RejectedRow(NamedTuple):
    id: UUID
    error: str


class OutboxStatus(NamedTuple):
    waiting: int
    oldest_seconds: float | None
    rejected: int


class OutboxUnavailable(EverbeatError):
    """The application's database is unreachable, or the transaction failed. Nothing was removed from the outbox."""


class OutboxMissing(EverbeatError):
    """The application's database has no outbox, or the role may not use it."""


class OutboxTable:
    """The outbox in the application's database. It has one connection, opened when needed and after errors."""

    def __init__(self, url: str, *, notices: bool = True) -> None:
        self._url = url
        self._notices = notices
        self._connection: asyncpg.Connection | None = None
        self._notified = asyncio.Event()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close(timeout=2)

    @contextlib.asynccontextmanager
    async def locked_batch(self, limit: int) -> AsyncIterator[LockedBatch]:
        """Lock shards and read their first rows. They stay locked until the end of the block, which commits."""
        async with self._translated():
            connection = await self._open()
            async with connection.transaction(isolation="read_committed"):
                await connection.execute(
                    f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_SECONDS:g}s'; "
                    f"SET LOCAL statement_timeout = '{_STATEMENT_SECONDS:g}s'"
                )
                held_until = asyncio.get_running_loop().time() + HOLD_SECONDS
                shards = [row["shard"] for row in await self._fetch("outbox_lock_shards", limit=MAX_SHARDS_LOCKED)]
                # A second statement, so that it sees what the previous holder of the locks has removed.
                rows = await self._fetch("outbox_read", shards=shards, limit=limit) if shards else []
                yield LockedBatch(self, [OutboxRow(row["id"], row["task"].encode()) for row in rows], held_until)

    async def wait(self, seconds: float) -> None:
        """Wait until rows are inserted, or for this time."""
        async with self._translated():
            await self._open()
            self._notified.clear()
            if self._notices:
                await self._fetch("outbox_request_wakeup")
            # After the request: an insert before it has sent no notification.
            (row,) = await self._fetch("outbox_has_rows")
        if not row["has_rows"]:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._notified.wait(), seconds)

    async def status(self) -> OutboxStatus:
        async with self._translated():
            await self._open()
            (row,) = await self._fetch("outbox_status")
            return OutboxStatus(row["waiting"], row["oldest_seconds"], row["rejected"])

    async def install(self) -> None:
        """Create the tables, functions and triggers, or update them."""
        async with self._translated():
            connection = await self._open()
            async with connection.transaction():
                await connection.execute(install_sql())

    async def _fetch(self, name: str, **values: Any) -> list[asyncpg.Record]:
        assert self._connection is not None
        query = numbered_query(name)
        rows: list[asyncpg.Record] = await self._connection.fetch(
            query.sql, *query.arguments(values), timeout=_STATEMENT_SECONDS
        )
        return rows

    async def _open(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            # Without prepared statements, so that it works behind a pooler in transaction mode.
            self._connection = await asyncpg.connect(
                self._url,
                timeout=_CONNECT_SECONDS,
                statement_cache_size=0,
                server_settings={"application_name": "everbeat-relay"},
            )
            if self._notices:
                await self._connection.add_listener(CHANNEL, lambda *_: self._notified.set())
        return self._connection

    @contextlib.asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        """Translate errors of the driver. The connection is closed after one, which also ends its transaction."""
        try:
            yield
        except _ERRORS as error:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.terminate()
            raise _translated_error(error) from error


class LockedBatch:
    """The first rows of locked shards."""

    def __init__(self, table: OutboxTable, rows: list[OutboxRow], held_until: float) -> None:
        self.rows = rows
        self.held_until = held_until
        self._table = table

    async def remove(self, accepted: list[UUID], rejected: list[RejectedRow]) -> None:
        """Delete the accepted rows and move the rejected ones aside. Takes effect at the end of the block."""
        if accepted:
            await self._table._fetch("outbox_delete", ids=accepted)
        if rejected:
            ids, errors = [row.id for row in rejected], [row.error for row in rejected]
            await self._table._fetch("outbox_reject", ids=ids, errors=errors)


def install_sql() -> str:
    return files("everbeat.outbox").joinpath("install.sql").read_text(encoding="utf-8")


def _translated_error(error: Exception) -> EverbeatError:
    state = getattr(error, "sqlstate", None)
    if state == _UNDEFINED_TABLE:
        return OutboxMissing(f"the database has no outbox ({error}); create it with: everbeat outbox install")
    if state == _NO_PRIVILEGE:
        return OutboxMissing(f"{error}; docs/howto/transactional-enqueue.md lists the privileges of a relay")
    if isinstance(error, TimeoutError):
        return OutboxUnavailable("the application's database did not respond in time")
    return OutboxUnavailable(f"{type(error).__name__}: {error}")

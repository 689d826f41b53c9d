"""Connections to PostgreSQL: separate pools so that load in one place cannot starve another, deadlines, error meanings.

Three pools: `lease` (one connection, only for ownership: an exhausted server or a slow query elsewhere must not cost a
lease), `engine` (the tick loop) and `api` (everything a user asks for). A listener connection hears notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from everbeat.core.errors import StoreBroken, StoreRefused, StoreUnavailable
from everbeat.store.base import Notice, Observer
from everbeat.store.queries import Query

T = TypeVar("T")

CHANNEL = "everbeat"
_RETRYABLE = ("40001", "40P01")
_GONE = ("08", "25006", "57P0")
_REFUSED = ("22", "23")
# The last: what asyncpg says of a connection whose end it has heard of but not yet seen.
_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, asyncpg.InternalClientError)

Connection: TypeAlias = PoolConnectionProxy


def meaning_of(error: BaseException) -> Exception:
    """The Everbeat error that a driver error stands for."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the database did not answer in time")
    if isinstance(error, OSError):
        return StoreUnavailable(f"the database cannot be reached ({error}); is it running, is the URL right?")
    if isinstance(error, asyncpg.PostgresError):
        state = getattr(error, "sqlstate", "") or ""
        if state.startswith(_REFUSED):
            return StoreRefused(str(error))
        if state.startswith("42"):
            return StoreBroken(f"the database is not as this Everbeat needs it ({error}); run: everbeat migrate")
        return StoreUnavailable(f"{type(error).__name__}: {error}")
    return StoreUnavailable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def lost_a_race(error: StoreUnavailable) -> bool:
    """A deadlock or a serialisation failure: nothing was changed, and trying again is right."""
    return getattr(error.__cause__, "sqlstate", None) in _RETRYABLE


async def retrying(write: Callable[[], Awaitable[T]]) -> T:
    """A deadlock or a serialisation failure changed nothing, and is tried again."""
    for _ in range(3):
        try:
            return await write()
        except StoreUnavailable as error:
            if not lost_a_race(error):
                raise
    return await write()


class Connections:
    """The pools of one process, opened lazily: a database that is away at the start is no reason to die."""

    def __init__(
        self,
        url: str,
        *,
        api_connections: int = 8,
        engine_connections: int = 3,
        timeout_seconds: float = 10.0,
        lease_timeout_seconds: float = 2.5,
        observer: Observer | None = None,
    ) -> None:
        self._url = url
        self._sizes = {"api": api_connections, "engine": engine_connections, "lease": 1}
        self._timeouts = {"api": timeout_seconds, "engine": timeout_seconds, "lease": lease_timeout_seconds}
        self._pools: dict[str, asyncpg.Pool] = {}
        self._opening = asyncio.Lock()
        self._observer = observer
        self.identity = str(uuid4())

    async def _pool(self, name: str) -> asyncpg.Pool:
        if name in self._pools:
            return self._pools[name]
        async with self._opening:
            if name not in self._pools:
                self._pools[name] = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._sizes[name],
                    timeout=self._timeouts[name],
                    command_timeout=self._timeouts[name],
                    max_inactive_connection_lifetime=300,
                    reset=_keep_session,
                    server_settings=self._session(name),
                )
        return self._pools[name]

    def _session(self, pool: str) -> dict[str, str]:
        milliseconds = str(int(self._timeouts[pool] * 1000))
        return {
            "application_name": f"everbeat-{pool}",
            "statement_timeout": milliseconds,
            "lock_timeout": milliseconds,
            "idle_in_transaction_session_timeout": "30000",
            "jit": "off",
            # Every statement here finds its rows by an index; a plan made while a table was small must not outlive that.
            "enable_seqscan": "off",
            "enable_mergejoin": "off",
            "enable_hashjoin": "off",
            "timezone": "UTC",
        }

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            try:
                async with asyncio.timeout(2):
                    await pool.close()
            except Exception:
                pool.terminate()

    @contextlib.asynccontextmanager
    async def use(self, pool_name: str, verb: str) -> AsyncIterator[Connection]:
        """A connection for one short piece of work, with errors translated and the call observed."""
        started, failed = time.perf_counter(), True
        try:
            pool = await self._pool(pool_name)
            async with asyncio.timeout(self._timeouts[pool_name] * 2):
                async with pool.acquire(timeout=self._timeouts[pool_name]) as connection:
                    yield connection
            failed = False
        except _DRIVER_ERRORS as error:
            if str(getattr(error, "sqlstate", "")).startswith(_GONE) or isinstance(error, asyncpg.InternalClientError):
                # A server that was stopped or became read-only speaks for all connections to it.
                await self._expire()
            raise meaning_of(error) from error
        finally:
            if self._observer is not None:
                self._observer(verb, time.perf_counter() - started, failed)

    async def _expire(self) -> None:
        for pool in self._pools.values():
            await pool.expire_connections()

    async def fetch(self, pool: str, query: Query, **values: Any) -> list[asyncpg.Record]:
        async def once() -> list[asyncpg.Record]:
            async with self.use(pool, query.name) as connection:
                return await fetch_on(connection, query, **values)

        return await retrying(once)

    async def execute(self, pool: str, query: Query, **values: Any) -> int:
        async with self.use(pool, query.name) as connection:
            return await execute_on(connection, query, **values)

    async def listen(self, heard: Callable[[Notice], None], on_trouble: Callable[[Exception], None]) -> None:
        """Hear notices for as long as the process lives; while the connection is away, polling keeps things moving."""
        delay = 0.5
        while True:
            try:
                await self._listen_once(heard)
                delay = 0.5
            except _DRIVER_ERRORS as error:
                on_trouble(meaning_of(error))
            await asyncio.sleep(delay)
            delay = min(delay * 2, 10)

    async def _listen_once(self, heard: Callable[[Notice], None]) -> None:
        connection = await asyncpg.connect(self._url, timeout=10, server_settings={"application_name": "everbeat-listen"})

        def on_notice(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            kind, _, sender = payload.partition(":")
            if sender != self.identity and kind in Notice._value2member_map_:
                heard(Notice(kind))

        closed = asyncio.Event()
        connection.add_termination_listener(lambda _connection: closed.set())
        try:
            await connection.add_listener(CHANNEL, on_notice)
            for notice in Notice:
                heard(notice)  # whatever was said while nobody listened
            while not closed.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(closed.wait(), 15)
                if not closed.is_set():  # a half-open connection looks alive until it is asked something
                    await connection.fetchval("SELECT 1", timeout=10)
        finally:
            with contextlib.suppress(Exception):
                connection.terminate()


async def _keep_session(_connection: Any) -> None:
    """Our statements leave nothing behind in a session; the pool's reset would cost a round trip after each of them."""


async def fetch_on(connection: Connection, query: Query, **values: Any) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = await connection.fetch(query.sql, *query.arguments(values))
    return rows


async def execute_on(connection: Connection, query: Query, **values: Any) -> int:
    """How many rows the statement changed."""
    tag: str = await connection.execute(query.sql, *query.arguments(values))
    return int(tag.rpartition(" ")[2])


def describe_url(url: str) -> str:
    """Where the URL points, without its secrets."""
    parts = urlsplit(url)
    host = parts.hostname or parse_qs(parts.query).get("host", ["local socket"])[0]
    return f"{host}:{parts.port or 5432}{parts.path}"

"""Connection pools for PostgreSQL, their timeouts, and the translation of driver errors.

The pools are separate, so that load on one cannot starve the others:
- `lease`: one connection, used only for ownership, so that a slow query elsewhere does not make the node lose its partitions.
- `engine`: the ticker and the promoter.
- `maintenance`: the other loops of the engine.
- `api`: API requests.

Another connection listens for notices.

With transaction pooling (PgBouncer), the session can change after each transaction, so nothing may depend on it: timeouts and
planner settings are set in each transaction, together with its BEGIN, and no prepared statements are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import uuid4

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from everbeat.core.errors import HandoffPaused, KeyTaken, StoreLocked, StoreRefused, StoreUnavailable, StoreUnusable
from everbeat.core.lock_retries import REQUEST_DELAYS_SECONDS
from everbeat.store.base import Observer
from everbeat.store.postgres.hosts import Connector
from everbeat.store.queries import Query
from everbeat.store.samples import PoolUse
from everbeat.store.values import Notice

T = TypeVar("T")

CHANNEL = "everbeat"
_LOCKED = "55P03"
EVENT_STREAM_CHANNEL = "everbeat_feed"
_RETRYABLE = ("40001", "40P01")
_SERVER_LOST = ("08", "25006", "57P0")
_REFUSED = ("22", "23")
# A request must not hold its locks for long while it waits for another one. It is repeated for about a second instead.
_REQUEST_LOCK_SECONDS = 0.1
_CLOSE_SECONDS = 2.0
# How long statements on connections that were replaced may run. asyncpg would log a warning after a minute.
_REPLACED_SECONDS = 50.0
# Raised by everbeat_raise_key_taken().
_KEY_TAKEN = "VB001"
# Raised by everbeat_raise_paused().
_HANDOFF_PAUSED = "VB002"
# Nothing changes by waiting, unlike for a server that is starting.
_CANNOT_LOG_IN = {
    "28P01": "the database refused the user name or the password; correct them in the URL, or in PGUSER and PGPASSWORD",
    "28000": "the database refused this user or this connection; check the user name in the URL, and pg_hba.conf on the server",
    "3D000": "the database of the URL does not exist on the server; create it with CREATE DATABASE, or correct the URL",
}
# asyncpg raises InternalClientError on a connection whose loss it has not processed yet.
_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, asyncpg.InternalClientError)

Connection: TypeAlias = PoolConnectionProxy
Pooling = Literal["session", "transaction"]


def translate_error(error: BaseException) -> Exception:
    """The Everbeat error for a driver error."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the database did not respond in time")
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError | ssl.SSLCertVerificationError):
        return StoreUnusable(f"the options of the database URL cannot be used ({error}); correct the URL or the files it names")
    if isinstance(error, OSError):
        return StoreUnavailable(f"cannot connect to the database ({error}); check the URL, and that the server is running")
    if isinstance(error, asyncpg.PostgresError):
        state = getattr(error, "sqlstate", "") or ""
        if state == _KEY_TAKEN:
            return KeyTaken(str(error))
        if state == _HANDOFF_PAUSED:
            return HandoffPaused(str(error))
        if state == _LOCKED:
            return StoreLocked("another transaction holds a lock that this operation needs, and did not release it in time")
        if state.startswith(_REFUSED):
            return StoreRefused(str(error))
        if message := _CANNOT_LOG_IN.get(state):
            return StoreUnusable(message)
        if state == "42501":
            return StoreUnusable(
                f"the database role lacks a privilege ({error}); docs/howto/postgresql.md lists the privileges that it needs"
            )
        if state.startswith("42"):
            return StoreUnusable(
                f"the database schema does not match this version of Everbeat ({error}); run: everbeat migrate"
            )
        return StoreUnavailable(f"{type(error).__name__}: {error}")
    return StoreUnavailable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def is_serialization_failure(error: StoreUnavailable) -> bool:
    """Whether the error is a deadlock or a serialization failure. Nothing was changed, and the write can be repeated."""
    return getattr(error.__cause__, "sqlstate", None) in _RETRYABLE


async def retry_on_serialization_failure(write: Callable[[], Awaitable[T]]) -> T:
    """Repeat a write up to three times after a deadlock or a serialization failure, which change nothing."""
    for _ in range(3):
        try:
            return await write()
        except StoreUnavailable as error:
            if not is_serialization_failure(error):
                raise
    return await write()


class PostgresConnections:
    """The connection pools of one process. They are opened on first use, so that a node can start without the database."""

    def __init__(
        self,
        url: str,
        *,
        listen_url: str | None = None,
        pooling: Pooling = "session",
        api_connections: int = 8,
        engine_connections: int = 3,
        maintenance_connections: int = 2,
        timeout_seconds: float = 10.0,
        lease_timeout_seconds: float = 2.5,
        idle_transaction_seconds: float = 3.0,
        observer: Observer | None = None,
    ) -> None:
        self._url = url
        self._listen_url = listen_url or url
        self._is_pooled = pooling == "transaction"
        self._sizes = {"api": api_connections, "engine": engine_connections, "maintenance": maintenance_connections, "lease": 1}
        self._timeouts = {**dict.fromkeys(self._sizes, timeout_seconds), "lease": lease_timeout_seconds}
        self._settings = {
            pool_name: session_settings(
                timeout, idle_transaction_seconds, _REQUEST_LOCK_SECONDS if pool_name == "api" else timeout / 2
            )
            for pool_name, timeout in self._timeouts.items()
        }
        self._begins = {pool_name: self._begin(settings) for pool_name, settings in self._settings.items()}
        # A backend that waits for a client to read its rows is active, not idle. The socket timeout ends it as early.
        self._socket = {"tcp_user_timeout": str(int(idle_transaction_seconds * 1000))}
        self._pools: dict[str, asyncpg.Pool] = {}
        self._opening = asyncio.Lock()
        # What asyncpg would leave to the event loop, which would print its exceptions.
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting = dict.fromkeys(self._sizes, 0)
        self._observer = observer
        self.identity = str(uuid4())

    def _begin(self, session: Mapping[str, str]) -> str:
        return "; ".join(["BEGIN", *(_set_local(*one) for one in session.items())]) if self._is_pooled else "BEGIN"

    async def _pool(self, pool_name: str) -> asyncpg.Pool:
        if pool_name in self._pools:
            return self._pools[pool_name]
        async with self._opening:
            if pool_name not in self._pools:
                name = {"application_name": f"everbeat-{pool_name}"}
                self._pools[pool_name] = await asyncpg.create_pool(
                    self._url,
                    connect=Connector(self._url, self._timeouts[pool_name]),
                    min_size=0,
                    max_size=self._sizes[pool_name],
                    command_timeout=self._timeouts[pool_name],
                    max_inactive_connection_lifetime=300,
                    reset=_skip_reset,
                    server_settings=name if self._is_pooled else name | self._settings[pool_name] | self._socket,
                    statement_cache_size=0 if self._is_pooled else 100,
                )
        return self._pools[pool_name]

    def pool_use(self) -> list[PoolUse]:
        """The use of each pool. One that has not been used yet has no connections."""
        uses = []
        for name, max_size in self._sizes.items():
            pool = self._pools.get(name)
            size, idle = (0, 0) if pool is None else (pool.get_size(), pool.get_idle_size())
            uses.append(PoolUse(name, size - idle, size, max_size, self._waiting[name]))
        return uses

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await _close_pool(pool, _CLOSE_SECONDS)
        for task in list(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def use(self, pool_name: str, verb: str) -> AsyncIterator[Connection]:
        """A connection for one statement or a few. Errors are translated, and the call is reported to the observer."""
        async with self.outside_transaction(pool_name, verb) as connection:
            if self._is_pooled:
                async with _transaction(connection, self._begins[pool_name]):
                    yield connection
            else:
                yield connection

    @contextlib.asynccontextmanager
    async def transaction(
        self, pool_name: str, verb: str, *, timeout_seconds: float | None = None, **settings: str
    ) -> AsyncIterator[Connection]:
        """A connection in a transaction. `settings` are set for this transaction only."""
        begin = "; ".join([self._begins[pool_name], *(_set_local(*one) for one in settings.items())])
        async with (
            self.outside_transaction(pool_name, verb, timeout_seconds=timeout_seconds) as connection,
            _transaction(connection, begin),
        ):
            yield connection

    @contextlib.asynccontextmanager
    async def outside_transaction(
        self, pool_name: str, verb: str, *, timeout_seconds: float | None = None
    ) -> AsyncIterator[Connection]:
        """A connection outside a transaction, for statements that cannot run in one."""
        started, failed = time.perf_counter(), True
        pool: asyncpg.Pool | None = None
        try:
            pool = await self._pool(pool_name)
            async with asyncio.timeout(timeout_seconds or self._timeouts[pool_name] * 2):
                self._waiting[pool_name] += 1
                try:
                    connection = await pool.acquire(timeout=self._timeouts[pool_name])
                finally:
                    self._waiting[pool_name] -= 1
                try:
                    yield connection
                except BaseException:
                    await self._release_failed(pool, connection)
                    raise
                await _suppressed(pool.release(connection, timeout=_CLOSE_SECONDS))
            failed = False
        except _DRIVER_ERRORS as error:
            if str(getattr(error, "sqlstate", "")).startswith(_SERVER_LOST) or isinstance(error, asyncpg.InternalClientError):
                # The server has stopped or become read-only: all its connections are unusable, not only this one.
                self._replace_pools(pool_name, pool)
            raise translate_error(error) from error
        finally:
            if self._observer is not None:
                self._observer(verb, time.perf_counter() - started, failed)

    async def _release_failed(self, pool: asyncpg.Pool, connection: Connection) -> None:
        """Return a connection to its pool after a failure. If it is unusable, asyncpg closes it.

        This waits until the server has cancelled the statement. If the caller is cancelled meanwhile, it continues.
        """
        await asyncio.shield(self._in_background(_suppressed(pool.release(connection, timeout=_CLOSE_SECONDS))))

    def _replace_pools(self, pool_name: str, failed: asyncpg.Pool | None) -> None:
        """Open new connections for later statements. Those that still run on the old ones may finish."""
        if failed is None or self._pools.get(pool_name) is not failed:
            return  # another statement on the same connections has failed first
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            self._in_background(_close_pool(pool, _REPLACED_SECONDS))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def fetch(self, pool_name: str, query: Query, **values: Any) -> list[asyncpg.Record]:
        return await self.retry(pool_name, lambda: self.fetch_once(pool_name, query, **values))

    async def fetch_once(self, pool_name: str, query: Query, **values: Any) -> list[asyncpg.Record]:
        async with self.use(pool_name, query.name) as connection:
            return await fetch_on(connection, query, **values)

    async def execute(self, pool_name: str, query: Query, **values: Any) -> int:
        async def once() -> int:
            async with self.use(pool_name, query.name) as connection:
                return await execute_on(connection, query, **values)

        return await self.retry(pool_name, once)

    async def retry(self, pool_name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat work that another transaction has prevented: after a deadlock, and for a request also while locked."""
        for delay in REQUEST_DELAYS_SECONDS if pool_name == "api" else ():
            try:
                return await retry_on_serialization_failure(work)
            except StoreLocked:
                await asyncio.sleep(delay)
        return await retry_on_serialization_failure(work)

    async def listen(
        self, on_notice: Callable[[Notice], None], on_error: Callable[[Exception], None], on_message: Callable[[str], None]
    ) -> None:
        """Listen for notices until cancelled, and reconnect when the connection is lost. Polling finds changes meanwhile."""
        delay = 0.5
        while True:
            try:
                await self._listen_once(on_notice, on_message)
                delay = 0.5
            except _DRIVER_ERRORS as error:
                on_error(translate_error(error))
            await asyncio.sleep(delay)
            delay = min(delay * 2, 10)

    async def _listen_once(self, on_notice: Callable[[Notice], None], on_message: Callable[[str], None]) -> None:
        connect = Connector(self._listen_url, 10)
        connection = await connect(server_settings={"application_name": "everbeat-listen"})

        def receive(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            kind, _, sender = payload.partition(":")
            if sender != self.identity and kind in Notice._value2member_map_:
                on_notice(Notice(kind))

        closed = asyncio.Event()
        connection.add_termination_listener(lambda _connection: closed.set())
        try:
            await connection.add_listener(CHANNEL, receive)
            await connection.add_listener(
                EVENT_STREAM_CHANNEL, lambda _connection, _pid, _channel, message: on_message(message)
            )
            for notice in Notice:
                on_notice(notice)  # some may have been missed before the connection was open
            while not closed.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(closed.wait(), 15)
                if not closed.is_set():  # a query detects a half-open connection
                    await connection.fetchval("SELECT 1", timeout=10)
        finally:
            with contextlib.suppress(Exception):
                connection.terminate()


def session_settings(
    timeout_seconds: float, idle_transaction_seconds: float = 3.0, lock_seconds: float | None = None
) -> dict[str, str]:
    milliseconds = int(timeout_seconds * 1000)
    return {
        "statement_timeout": str(milliseconds),
        # Shorter than statement_timeout, so that a statement that waits for a lock fails early and frees its connection.
        "lock_timeout": str(milliseconds // 2 if lock_seconds is None else int(lock_seconds * 1000)),
        # Shorter than the lease of a node: a node that is frozen in a transaction must not hold its row locks for longer than
        # its partitions.
        "idle_in_transaction_session_timeout": str(int(idle_transaction_seconds * 1000)),
        "jit": "off",
        # Every statement finds its rows by an index. A plan made while a table was small must not be used when it has grown.
        "enable_seqscan": "off",
        "enable_mergejoin": "off",
        "enable_hashjoin": "off",
        "timezone": "UTC",
    }


def _set_local(name: str, value: str) -> str:
    return f"SET LOCAL {name} = '{value}'"


@contextlib.asynccontextmanager
async def _transaction(connection: Connection, begin: str) -> AsyncIterator[None]:
    """A transaction that sends `begin` in one round trip. asyncpg would need one more for each setting."""
    try:
        await connection.execute(begin)
        yield
        if await connection.execute("COMMIT") != "COMMIT":  # the tag is ROLLBACK after a failed statement
            raise StoreUnavailable("the transaction failed and was rolled back")
    except BaseException:
        if not connection.is_closed() and connection.is_in_transaction():
            with contextlib.suppress(*_DRIVER_ERRORS):
                await connection.execute("ROLLBACK")
        raise


async def _close_pool(pool: asyncpg.Pool, timeout_seconds: float) -> None:
    """Close the connections of a pool when they are free, at the latest after the timeout."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await pool.close()
    except Exception:
        pool.terminate()


async def _suppressed(work: Awaitable[None]) -> None:
    with contextlib.suppress(*_DRIVER_ERRORS):
        await work


async def _skip_reset(_connection: Any) -> None:
    """Does nothing. The statements leave no session state, and the pool's reset would cost a round trip after each of them."""


async def fetch_on(connection: Connection, query: Query, **values: Any) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = await connection.fetch(query.sql, *query.arguments(values))
    return rows


async def execute_on(connection: Connection, query: Query, **values: Any) -> int:
    """Run a statement and return the number of rows that it changed."""
    tag: str = await connection.execute(query.sql, *query.arguments(values))
    return int(tag.rpartition(" ")[2])

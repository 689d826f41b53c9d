"""Connections to an SQLite file: one writer thread for all writes and checkpoints, and a few reader threads.

synchronous is FULL: with NORMAL, a power failure loses commits that were already acknowledged. Writes use BEGIN IMMEDIATE, so
that they wait for a write of another process at the start and cannot fail with SQLITE_BUSY later in the transaction.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import apsw

from everbeat.core.errors import StoreRefused, StoreUnavailable, StoreUnusable
from everbeat.store.base import Observer
from everbeat.store.rows import text_of

T = TypeVar("T")
Row = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BUSY_MILLISECONDS = 10_000

_INSTANTS = frozenset({"scheduled_for", "until", "since", "anchor", "lease_until", "at"})
_IDS = frozenset({"id", "owner", "node", "replayed_as"})
_TEXTS = frozenset({"request_id"})
_BOOLEANS = frozenset({"enabled", "cancel_requested", "is_fleet", "is_there", "is_new"})


# A batch contains few distinct times, and each is converted many times.
@lru_cache(maxsize=8192)
def to_microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


@lru_cache(maxsize=8192)
def from_microseconds(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


def hex_text(ids: Iterable[UUID]) -> str:
    """Ids in hex as a JSON array, because SQLite has no arrays."""
    return text_of([id_.hex for id_ in ids])


def microseconds_of(seconds: float) -> int:
    return int(seconds * 1_000_000)


def bound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with lists converted to JSON, because SQLite has no arrays. Ids and bytes are in hex, times in microseconds."""
    return {name: text_of([*map(_item, value)]) if isinstance(value, list) else value for name, value in values.items()}


def _item(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, bytes):
        return value.hex()
    return to_microseconds(value) if isinstance(value, datetime) else value


@lru_cache(maxsize=1024)
def tenant_of(value: bytes) -> UUID:
    return UUID(bytes=value)


def _bind(_cursor: apsw.Cursor, _number: int, value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, datetime):
        return to_microseconds(value)
    raise TypeError(f"a {type(value).__name__} cannot be bound as an SQLite parameter")


def _converter(column: str) -> Callable[[Any], Any] | None:
    if column.endswith("_at") or column in _INSTANTS:
        return from_microseconds
    if column == "tenant_id":
        return tenant_of
    if column not in _TEXTS and (column.endswith("_id") or column in _IDS):
        return lambda value: UUID(bytes=value)
    return bool if column in _BOOLEANS else None


def translate_error(error: apsw.Error, path: Path) -> Exception:
    """The Everbeat error for a driver error."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreUnusable(f"{path} is damaged or not a database ({error}); restore a backup, nothing was changed")
    if isinstance(error, apsw.SQLError):
        return StoreUnusable(f"the schema of {path} does not match this version of Everbeat ({error}); run: everbeat migrate")
    if isinstance(error, apsw.ConstraintError | apsw.MismatchError | apsw.TooBigError | apsw.RangeError):
        return StoreRefused(str(error))
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError):
        return StoreUnavailable(f"{path} cannot be written ({error}); check the folder's permissions and free space")
    return StoreUnavailable(f"{path}: {error}")


class SqliteSession:
    """One connection, used by one thread. Rows are returned as dicts with ids and times converted."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._converters: dict[tuple[str, ...], list[tuple[str, Callable[[Any], Any] | None]]] = {}

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        cursor = self._cursor()
        return self._converted(cursor, cursor.execute(sql, values))

    def rows_many(self, sql: str, many: Iterable[Any]) -> list[Row]:
        """The rows of a statement that is executed for each of the values."""
        cursor = self._cursor()
        return self._converted(cursor, cursor.executemany(sql, many))

    def _converted(self, cursor: apsw.Cursor, found: Iterable[tuple[Any, ...]]) -> list[Row]:
        rows: list[Row] = []
        columns: list[tuple[str, Callable[[Any], Any] | None]] | None = None
        for row in found:
            if columns is None:  # the description is available only while rows are being read
                columns = self._columns(cursor)
            rows.append(
                {
                    name: value if value is None or convert is None else convert(value)
                    for (name, convert), value in zip(columns, row, strict=True)
                }
            )
        return rows

    def tuples(self, sql: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Rows without conversion, for large results where the conversion would cost more than the query."""
        return list(self._cursor().execute(sql, values))

    def tuples_many(self, sql: str, many: Iterable[Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement that is executed for each of the values."""
        return list(self._cursor().executemany(sql, many))

    def change(self, sql: str, values: Mapping[str, Any] | None = None) -> int:
        """Execute a statement and return the number of rows that it changed."""
        before = self.connection.total_changes()
        for _ in self._cursor().execute(sql, values):
            pass
        return self.connection.total_changes() - before

    def change_many(self, sql: str, many: Iterable[Any]) -> int:
        before = self.connection.total_changes()
        self._cursor().executemany(sql, many)
        return self.connection.total_changes() - before

    def script(self, sql: str) -> None:
        for _ in self.connection.execute(sql):
            pass

    def _cursor(self) -> apsw.Cursor:
        cursor = self.connection.cursor()
        cursor.convert_binding = _bind
        return cursor

    def _columns(self, cursor: apsw.Cursor) -> list[tuple[str, Callable[[Any], Any] | None]]:
        names = tuple(column[0] for column in cursor.get_description())
        if names not in self._converters:
            self._converters[names] = [(name, _converter(name)) for name in names]
        return self._converters[names]


class SqliteConnections:
    """The threads and connections of one process for one file. `writer_setup_sql` runs when the writer connection is opened."""

    def __init__(self, path: Path, *, writer_setup_sql: str = "", readers: int = 2, observer: Observer | None = None) -> None:
        self._path = path
        self._writer_setup_sql = writer_setup_sql
        self._observer = observer
        self._writer = ThreadPoolExecutor(1, "everbeat-sqlite-writer")
        self._readers = ThreadPoolExecutor(readers, "everbeat-sqlite-reader")
        self._local = threading.local()
        self._opened: list[apsw.Connection] = []
        self._lock = threading.Lock()

    async def read(self, verb: str, work: Callable[[SqliteSession], T]) -> T:
        return await self._run(self._readers, verb, work)

    async def write(self, verb: str, work: Callable[[SqliteSession], T]) -> T:
        return await self._run(self._writer, verb, lambda session: _in_transaction(session, work))

    async def close(self) -> None:
        await asyncio.to_thread(self._shutdown)

    def _shutdown(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        for connection in reversed(self._opened):
            connection.close()

    async def _run(self, threads: ThreadPoolExecutor, verb: str, work: Callable[[SqliteSession], T]) -> T:
        started, failed = time.perf_counter(), True
        try:
            result = await asyncio.get_running_loop().run_in_executor(threads, self._call, work)
            failed = False
            return result
        except apsw.Error as error:
            raise translate_error(error, self._path) from error
        finally:
            if self._observer is not None:
                self._observer(verb, time.perf_counter() - started, failed)

    def _call(self, work: Callable[[SqliteSession], T]) -> T:
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = self._open()
        return work(session)

    def _open(self) -> SqliteSession:
        with self._lock:
            is_new = not self._path.exists()
            connection = apsw.Connection(str(self._path))
            if is_new:
                os.chmod(self._path, 0o600)
            connection.set_busy_timeout(_BUSY_MILLISECONDS)
            for pragma in (
                "journal_mode = WAL",
                "synchronous = FULL",
                "temp_store = MEMORY",
                "cache_size = -32000",
                "journal_size_limit = 67108864",
            ):
                connection.execute(f"PRAGMA {pragma}")
            if self._writer_setup_sql and threading.current_thread().name.startswith("everbeat-sqlite-writer"):
                connection.execute(self._writer_setup_sql)
            self._opened.append(connection)
            return SqliteSession(connection)


def _in_transaction(session: SqliteSession, work: Callable[[SqliteSession], T]) -> T:
    session.connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(session)
    except BaseException:
        session.connection.execute("ROLLBACK")
        raise
    session.connection.execute("COMMIT")
    return result

"""Connections to an SQLite file: one writer thread for all writes and checkpoints, and a few reader threads.

synchronous is FULL: with NORMAL, a power failure loses commits that were already acknowledged. Writes use BEGIN IMMEDIATE, so
that they wait for a write of another process at the start and cannot fail with SQLITE_BUSY later in the transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import apsw

from everbeat.core.errors import StoreRefused, StoreUnavailable, StoreUnusable
from everbeat.store.base import Observer
from everbeat.store.samples import PoolUse
from everbeat.store.sqlite.blocks import Block, Columns
from everbeat.store.sqlite.conversions import convert_binding
from everbeat.store.sqlite.writer import SqliteWriter

T = TypeVar("T")
Row = dict[str, Any]

_BUSY_MILLISECONDS = 10_000


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
    """One connection, used by one thread. Rows are returned as dicts with the declared columns converted."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def rows(self, block: Block, values: Mapping[str, Any] | None = None) -> list[Row]:
        cursor = self._row_cursor(block)
        return _converted(block, cursor, cursor.execute(block.sql, values))

    def rows_many(self, block: Block, many: Iterable[Any]) -> list[Row]:
        """The rows of a statement that is executed for each of the values."""
        cursor = self._row_cursor(block)
        return _converted(block, cursor, cursor.executemany(block.sql, many))

    def tuples(self, block: Block, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Rows without conversion, for large results where the conversion would cost more than the query."""
        return list(self._tuple_cursor(block).execute(block.sql, values))

    def tuples_many(self, block: Block, many: Iterable[Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement that is executed for each of the values."""
        return list(self._tuple_cursor(block).executemany(block.sql, many))

    def change(self, block: Block, values: Mapping[str, Any] | None = None) -> int:
        """Execute a statement and return the number of rows that it changed."""
        before = self.connection.total_changes()
        for _ in self._cursor().execute(block.sql, values):
            pass
        return self.connection.total_changes() - before

    def change_many(self, block: Block, many: Iterable[Any]) -> int:
        before = self.connection.total_changes()
        self._cursor().executemany(block.sql, many)
        return self.connection.total_changes() - before

    def script(self, sql: str) -> None:
        for _ in self.connection.execute(sql):
            pass

    def _cursor(self) -> apsw.Cursor:
        cursor = self.connection.cursor()
        cursor.convert_binding = convert_binding
        return cursor

    def _row_cursor(self, block: Block) -> apsw.Cursor:
        if block.is_read_as_tuples:
            raise ValueError(f"SQL block {block.name} is declared to be read as tuples")
        cursor = self._cursor()
        if not block.is_checked:
            cursor.exec_trace = block.check
        return cursor

    def _tuple_cursor(self, block: Block) -> apsw.Cursor:
        if not block.is_read_as_tuples:
            raise ValueError(f"SQL block {block.name} is not declared to be read as tuples")
        return self._cursor()


def _converted(block: Block, cursor: apsw.Cursor, found: Iterable[tuple[Any, ...]]) -> list[Row]:
    rows: list[Row] = []
    columns: Columns | None = None
    for row in found:
        if columns is None:  # the description is available only while rows are being read
            columns = block.columns(cursor)
        rows.append(
            {
                name: value if value is None or convert is None else convert(value)
                for (name, convert), value in zip(columns, row, strict=True)
            }
        )
    return rows


class SqliteConnections:
    """The threads and connections of one process for one file. `writer_setup_sql` runs when the writer connection is opened."""

    def __init__(self, path: Path, *, writer_setup_sql: str = "", readers: int = 2, observer: Observer | None = None) -> None:
        self._path = path
        self._writer_setup_sql = writer_setup_sql
        self._observer = observer
        self._writer = SqliteWriter("everbeat-sqlite-writer")
        self._readers = ThreadPoolExecutor(readers, "everbeat-sqlite-reader")
        self._sizes = {"writer": 1, "reader": readers}
        self._calls = dict.fromkeys(self._sizes, 0)
        self._local = threading.local()
        self._opened: list[apsw.Connection] = []
        self._lock = threading.Lock()

    async def read(self, verb: str, work: Callable[[SqliteSession], T]) -> T:
        return await self._run(verb, "reader", lambda: self._readers.submit(self._call, work))

    async def write(self, verb: str, work: Callable[[SqliteSession], T]) -> T:
        def write(session: SqliteSession) -> T:
            return _in_transaction(session, work)

        return await self._run(verb, "writer", lambda: self._writer.submit(verb, lambda: self._call(write)))

    def pool_use(self) -> list[PoolUse]:
        """The use of the writer and of the readers."""
        return [
            PoolUse(
                name, min(calls, self._sizes[name]), self._sizes[name], self._sizes[name], max(0, calls - self._sizes[name])
            )
            for name, calls in self._calls.items()
        ]

    async def close(self) -> None:
        await asyncio.to_thread(self._shutdown)

    def _shutdown(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        for connection in reversed(self._opened):
            connection.close()

    async def _run(self, verb: str, pool: str, submit: Callable[[], Future[T]]) -> T:
        started, failed = time.perf_counter(), True
        self._calls[pool] += 1
        try:
            result = await asyncio.wrap_future(submit())
            failed = False
            return result
        except apsw.Error as error:
            raise translate_error(error, self._path) from error
        finally:
            self._calls[pool] -= 1
            if self._observer is not None:
                self._observer(verb, time.perf_counter() - started, failed)

    def _call(self, work: Callable[[SqliteSession], T]) -> T:
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = self._open()
        return work(session)

    def _open(self) -> SqliteSession:
        with self._lock:
            _create_file(self._path)
            connection = apsw.Connection(str(self._path))
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


def _create_file(path: Path) -> None:
    """Create the file, readable by its owner only. SQLite gives the same mode to the files next to it."""
    with contextlib.suppress(OSError):  # SQLite reports what is wrong, and a file that exists is kept as it is
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _in_transaction(session: SqliteSession, work: Callable[[SqliteSession], T]) -> T:
    session.connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(session)
    except BaseException:
        session.connection.execute("ROLLBACK")
        raise
    session.connection.execute("COMMIT")
    return result

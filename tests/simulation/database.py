"""The simulated database: the real SQL of the SQLite store in memory, behind links that delay, lose and reorder.

Every transaction runs at one instant of simulated time, in the order in which the requests arrive. A request and its reply are
separate messages: each can be late or lost, also after the caller has given up. The clock of the database can be stepped.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import apsw

import everbeat.store.sqlite.base
import everbeat.store.sqlite.blocks
from everbeat.core.errors import StoreLocked, StoreUnavailable
from everbeat.store.migrate import load_migrations
from everbeat.store.notices import Notices
from everbeat.store.sqlite.blocks import Block, load_typed_blocks
from everbeat.store.sqlite.connections import Row, SqliteSession, translate_error
from everbeat.store.sqlite.conversions import from_microseconds, to_uuid
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import DueScan, Notice, PoolName
from tests.simulation.virtual_time import NETWORK, START_MICROSECONDS, Process, VirtualLoop

T = TypeVar("T")
Cells = tuple[Any, ...]

# The file must exist, because the store looks for it. It is never opened.
_PATH = Path(__file__)
_WATCHED = frozenset(
    {"schedules", "ticks", "tasks", "task_history", "attempts", "dead_letters", "partitions", "audit_findings", "pauses"}
)

blocks_of = functools.lru_cache(load_typed_blocks)


def share_blocks() -> None:
    """Load the SQL of the store once for all nodes. Only for a process of the simulation: a test may change what it loads."""
    everbeat.store.sqlite.base.load_typed_blocks = blocks_of  # type: ignore[attr-defined]
    everbeat.store.sqlite.base.load_migrations = functools.lru_cache(load_migrations)  # type: ignore[attr-defined]
    # Each id is read many times. Equal ids that are the same object are also found faster in dicts.
    everbeat.store.sqlite.blocks._CONVERTERS["uuid"] = functools.lru_cache(maxsize=100_000)(to_uuid)


class Change(NamedTuple):
    """A changed row: `old` is None for a new row, `new` for a deleted one. Cells are in the order of the table's columns."""

    table: str
    old: Cells | None
    new: Cells | None


class Commit(NamedTuple):
    """A committed transaction: which verb of which process, when by the database clock, and what it changed."""

    verb: str
    process: str
    at: int
    changes: list[Change]


class _UsedPartitions(Sequence[int]):
    """Skips the partitions without schedules: of 256, these are most. What is used is decided when the scan arrives."""

    def __init__(self, partitions: Sequence[int], used: set[int]) -> None:
        self._partitions, self._used = partitions, used

    def __iter__(self) -> Iterator[int]:
        return iter([partition for partition in self._partitions if partition in self._used])

    def __len__(self) -> int:
        return len(self._partitions)

    def __getitem__(self, index: Any) -> Any:
        return self._partitions[index]


class Database:
    """One database for all nodes. `on_commit` is called with every transaction that has changed rows."""

    def __init__(self, loop: VirtualLoop, on_commit: Callable[[Commit], None]) -> None:
        self._loop = loop
        self._on_commit = on_commit
        self.offset_microseconds = 0
        self.is_down = False
        self.calls = 0
        # All statements of all nodes share this connection.
        self.connection = apsw.Connection(":memory:", statementcachesize=2000)
        self._session = SqliteSession(self.connection)
        self.used_partitions: set[int] = set()
        self._changes: list[Change] = []

    async def create(self, prepare: Callable[[apsw.Connection], None] = lambda _connection: None) -> None:
        await SimulatedStore(Link(self, Process("setup", ""), 0.0), SimulatedNotices()).migrate()
        prepare(self.connection)
        self.connection.execute(blocks_of("everbeat.store.sqlite")["tick_fire_table"].sql)
        self.connection.preupdate_hook(self._note_change)

    def now(self) -> int:
        """The clock of the database, in microseconds."""
        return START_MICROSECONDS + round(self._loop.time() * 1_000_000) + self.offset_microseconds

    def columns(self, table: str) -> dict[str, int]:
        return {name: index for index, name, *_ in self.connection.execute(f"PRAGMA table_info({table})")}

    def read(self, work: Callable[[SqliteSession], T]) -> T:
        self.calls += 1
        return work(self._session)

    def write(self, verb: str, process: str, work: Callable[[SqliteSession], T]) -> T:
        self.calls += 1
        self._changes = []
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(self._session)
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        if self._changes:
            self._on_commit(Commit(verb, process, self.now(), self._changes))
        return result

    def _note_change(self, update: Any) -> None:
        table = update.table_name
        if table not in _WATCHED or update.database_name != "main":
            return
        new = update.new
        self._changes.append(Change(table, update.old, new))
        if table == "schedules" and new is not None:
            self.used_partitions.add(new[4])  # the column `partition`, in the first migration


class Link:
    """The connection of a process to the database. Faults change its fields for a time."""

    def __init__(self, database: Database, process: Process, timeout_seconds: float) -> None:
        self.database = database
        self._process = process
        self._random = process.random
        self._timeout_seconds = timeout_seconds
        self.lease_timeout_seconds = timeout_seconds
        self.heal()

    def heal(self) -> None:
        self.is_cut = False
        self.max_delay_seconds = 0.0
        self.orphaned = self.orphan_delay_seconds = 0.0
        self.lost_requests = 0.0
        self.lost_replies = 0.0
        self.locked = 0.0

    async def read(self, verb: str, work: Callable[[SqliteSession], T]) -> T:
        return await self._send(verb, lambda: self.database.read(work))

    async def write(self, verb: str, work: Callable[[SqliteSession], T]) -> T:
        return await self._send(verb, lambda: self.database.write(verb, self._process.name, work))

    async def close(self) -> None:
        """Nothing has to be closed."""

    def _send(self, verb: str, work: Callable[[], T]) -> asyncio.Future[T]:
        loop, random = asyncio.get_running_loop(), self._random
        done: asyncio.Future[T] = loop.create_future()
        if not self._timeout_seconds:
            done.set_result(work())
            return done
        request = random.uniform(0.0002, 0.002) + self._extra_delay()
        reply = random.uniform(0.0002, 0.002) + self._extra_delay()
        timeout = self.lease_timeout_seconds if verb == "partition_renew" else self._timeout_seconds
        is_request_lost = self.is_cut or random.random() < self.lost_requests
        is_reply_lost = random.random() < self.lost_replies
        if is_request_lost or is_reply_lost or request + reply > timeout:
            # The connection breaks, or nothing ever comes back.
            wait = timeout if random.random() < 0.5 else min(timeout, request + reply)
            loop.call_later(wait, _fail, done, f"the database did not answer {verb}", context=NETWORK)
        elif random.random() < self.orphaned:
            # The connection breaks after the request was sent, and the database executes it nevertheless, maybe much later.
            loop.call_later(random.uniform(0, request), _fail, done, f"the connection broke during {verb}", context=NETWORK)
            request += random.uniform(0, self.orphan_delay_seconds)
        if not is_request_lost:
            arguments = (done, verb, work, reply, is_reply_lost)
            loop.call_later(request, self._arrive, *arguments, context=NETWORK)
        return done

    def _extra_delay(self) -> float:
        return self._random.uniform(0, self.max_delay_seconds) if self.max_delay_seconds else 0.0

    def _arrive(self, done: asyncio.Future[T], verb: str, work: Callable[[], T], reply: float, is_reply_lost: bool) -> None:
        answer: Callable[[], None]
        try:
            if self.database.is_down:
                raise StoreUnavailable("the database is down")
            if self.locked and self._random.random() < self.locked:
                raise StoreLocked("another transaction has locked the table")
            result = work()
        except apsw.Error as error:
            failure: Exception = translate_error(error, _PATH)
            answer = functools.partial(_fail_with, done, failure)
        except Exception as error:
            answer = functools.partial(_fail_with, done, error)
        else:
            answer = functools.partial(_succeed, done, result)
        if not is_reply_lost:
            asyncio.get_running_loop().call_later(reply, answer, context=NETWORK)


def _succeed(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], message: str) -> None:
    _fail_with(done, StoreUnavailable(message))


def _fail_with(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


class SimulatedNotices(Notices):
    """The notices of a process: other processes get them late or never."""

    def __init__(self, process: Process | None = None, others: Callable[[], list[SimulatedNotices]] = list) -> None:
        super().__init__(None if process is None else self._send_to_others)
        self._process = process
        self._others = others
        self.lost = 0.0

    async def _send_to_others(self, notice: Notice) -> None:
        assert self._process is not None
        loop, random = asyncio.get_running_loop(), self._process.random
        for other in self._others():
            if other is not self and other._process is not None and random.random() >= max(self.lost, other.lost):
                loop.call_later(random.uniform(0.001, 0.1), other.notify_local, notice, context=other._process.context)


class SimulatedStore(SqliteStore):
    """The SQLite store of one simulated process. The time of a statement is read when the statement arrives."""

    def __init__(self, link: Link, notices: SimulatedNotices) -> None:
        super().__init__(_PATH)
        self._link = link
        self._connections = link  # type: ignore[assignment]
        self._notices = notices

    def pool(self, pool: PoolName) -> Self:
        return self

    def _moment(self, now: datetime | None) -> datetime:
        return now if now is not None else from_microseconds(self._link.database.now())

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        used = _UsedPartitions(partitions, self._link.database.used_partitions)
        return await super().schedule_due(used, horizon_seconds=horizon_seconds, limit=limit, now=now)

    async def _read(self, block: str, /, **values: Any) -> list[Row]:
        def work(session: SqliteSession) -> list[Row]:
            return session.rows(self._block(block), self._bound(values))

        return await self._link.read(block, work)

    async def _change(self, block: str, /, **values: Any) -> int:
        def work(session: SqliteSession) -> int:
            return session.change(self._block(block), self._bound(values))

        return await self._link.write(block, work)

    def _block(self, name: str) -> Block:
        return self._blocks[name]

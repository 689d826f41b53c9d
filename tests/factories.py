"""Builders for tests: schedules, firings, raw SQL on either dialect, and a node whose time is stepped by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar
from uuid import UUID, uuid4

import apsw
import asyncpg
import msgspec
import uuid_utils.compat

from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.access import AuditLogEntry
from everbeat.core.changes import ScheduleWrite
from everbeat.core.partitioning import PARTITIONS, partition_of
from everbeat.core.protocol import TaskInput, raw_json
from everbeat.core.rules import Rule, TriggerKind
from everbeat.core.schedules import DEFAULT_TENANT, Schedule, Spec, Status
from everbeat.core.targets import WorkerTarget
from everbeat.core.tasks import ClaimedTask, NewTask, Origin
from everbeat.core.ticks import Skip, SkipReason, Tick
from everbeat.engine import Engine
from everbeat.services.audit import AuditCount
from everbeat.services.events import Event, TicksRefused
from everbeat.services.fair_dispatch import ClaimScope, EqualShares, FairDispatcher
from everbeat.services.publisher import ChangePublisher
from everbeat.services.ticker import TickerSettings
from everbeat.services.tracing import ExportSpan
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.conversions import to_microseconds
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import ClaimRequest, CompleteResult, Firing, LeaseRef, NodeHeartbeat

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
OTHER_TENANT = UUID(int=7)
ALL_PARTITIONS = frozenset(range(PARTITIONS))
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2036, 1, 1, tzinfo=UTC)

E = TypeVar("E")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def every(number: int, *, anchor: datetime = NOW, **more: Any) -> Rule:
    return Rule(kind=TriggerKind.EVERY, expression=str(number), anchor=anchor, **more)


def cron(expression: str, **more: Any) -> Rule:
    return Rule(kind=TriggerKind.CRON, expression=expression, **more)


def make_spec(name: str = "job", **more: Any) -> Spec:
    return Spec(**{"name": name, "rule": every(60), "target": WorkerTarget(type="work"), **more})


def make_schedule(name: str = "job", *, at: datetime | None = NOW, **more: Any) -> Schedule:
    """Return an active schedule whose next tick is `at`. Keywords that are not fields of Schedule go to its spec."""
    schedule_fields = {field: more.pop(field) for field in list(more) if field in Schedule.__struct_fields__}
    id_ = schedule_fields.pop("id", None) or uuid4()
    defaults: dict[str, Any] = {
        "tenant_id": DEFAULT_TENANT,
        "partition": partition_of(id_),
        "status": Status.ACTIVE if at is not None else Status.PAUSED,
        "revision": 1,
        "cursor_at": NOW - minutes(1),
        "rule_at": NOW - minutes(1),
        "created_at": NOW - minutes(1),
        "updated_at": NOW - minutes(1),
        "next_tick_at": at,
        "due_at": at,
    }
    spec = schedule_fields.pop("spec", None) or make_spec(name, **more)
    return Schedule(id=id_, spec=spec, **{**defaults, **schedule_fields})


def definition(name: str = "job", **more: Any) -> dict[str, Any]:
    """Return a schedule as users write it: every minute on the minute, unless another trigger is given."""
    trigger = {} if {"cron", "every_seconds", "rrule", "at"} & more.keys() else {"cron": "* * * * *"}
    return {"name": name, **trigger, "target": {"kind": "worker", "type": "work"}, **more}


def changed(schedule: Schedule, **more: Any) -> Schedule:
    """Return the schedule at its next revision, with the given fields of the schedule or its spec changed."""
    schedule_fields = {field: value for field, value in more.items() if field in Schedule.__struct_fields__}
    spec = {field: value for field, value in more.items() if field not in schedule_fields}
    return msgspec.structs.replace(
        schedule,
        **{"revision": schedule.revision + 1, "spec": msgspec.structs.replace(schedule.spec, **spec), **schedule_fields},
    )


def firing_of(schedule: Schedule, epoch: int = 1, **more: Any) -> Firing:
    """Return the firing of the schedule's next tick. It advances the schedule by a minute."""
    assert schedule.next_tick_at is not None
    following = schedule.next_tick_at + minutes(1)
    firing = Firing(
        schedule_id=schedule.id,
        tenant_id=schedule.tenant_id,
        partition=schedule.partition,
        epoch=epoch,
        revision=schedule.revision,
        expected=schedule.next_tick_at,
        fires=schedule.next_tick_at,
        task_id=uuid4(),
        cursor_at=schedule.next_tick_at,
        next_tick_at=following,
        due_at=following,
    )
    return firing._replace(**more)


def make_task(type_: str = "work", *, tenant_id: UUID = DEFAULT_TENANT, **more: Any) -> NewTask:
    """Return a task to submit, with a time-ordered id."""
    id_ = more.pop("id", None) or uuid_utils.compat.uuid7()
    defaults: dict[str, Any] = {
        "partition": partition_of(id_),
        "queue": "default",
        "target": "{}",
        "payload": b"{}",
        "origin": Origin.SUBMIT,
        "priority": 100,
        "max_attempts": 3,
        "retry": "{}",
        "timeout_seconds": 3600.0,
        "labels": "{}",
    }
    return NewTask(id=id_, tenant_id=tenant_id, type=type_, **{**defaults, **more})


def make_audit_entry(**more: Any) -> AuditLogEntry:
    """Return an entry of the audit log."""
    defaults: dict[str, Any] = {
        "id": uuid_utils.compat.uuid7(),
        "tenant_id": DEFAULT_TENANT,
        "actor": "tester",
        "key_id": None,
        "action": "schedule.create",
        "subject": "job",
        "detail": "{}",
        "request_id": None,
        "address": None,
    }
    return AuditLogEntry(**{**defaults, **more})


def skip(first: datetime, last: datetime | None = None, count: int = 1, reason: SkipReason = SkipReason.MISFIRE) -> Skip:
    return Skip(first, last or first, count, reason)


def node_heartbeat(
    node: UUID, *, lease_seconds: float = 10, roles: tuple[str, ...] = ("scheduler",), name: str = "node"
) -> NodeHeartbeat:
    return NodeHeartbeat(node, name, roles, "test", lease_seconds)


async def insert(store: Store, *schedules: Schedule, tenant_id: UUID = DEFAULT_TENANT) -> None:
    assert await store.schedule_write(tenant_id, [ScheduleWrite(one) for one in schedules], now=NOW)


async def find(store: Store, schedule: Schedule) -> Schedule:
    (found,) = (await store.schedule_find(schedule.tenant_id, ids=[schedule.id])).schedules
    return found


async def claim(
    store: Store,
    *queues: str,
    limit: int = 10,
    now: datetime = NOW,
    worker: str = "worker",
    lease_seconds: float = 30,
    tenant_id: UUID = DEFAULT_TENANT,
    **more: Any,
) -> list[ClaimedTask]:
    """Claim as one worker, and return its tasks."""
    claim_requests = [ClaimRequest(worker, limit, lease_seconds)]
    (tasks,) = await claim_for(store, queues or ("default",), claim_requests, tenant_id=tenant_id, now=now, **more)
    return tasks


async def claim_for(
    store: Store,
    queues: Sequence[str],
    claim_requests: Sequence[ClaimRequest],
    *,
    tenant_id: UUID | None = DEFAULT_TENANT,
    types: Sequence[str] | None = None,
    total_seconds: float = 7 * 86_400,
    now: datetime | None = None,
) -> list[list[ClaimedTask]]:
    """Claim as several workers in one dispatch, and return the tasks of each."""
    key = ClaimScope(tenant_id, tuple(queues), None if types is None else tuple(types))
    dispatcher = FairDispatcher(key, store, ChangePublisher(store), EqualShares(), total_seconds)
    return (await dispatcher.dispatch(claim_requests, now=now)).tasks


def lease_of(task: ClaimedTask, **more: Any) -> LeaseRef:
    return LeaseRef(DEFAULT_TENANT, task.id, task.fence)._replace(**more)


async def complete(store: Store, *tasks: ClaimedTask, now: datetime = NOW, result: str | None = None) -> CompleteResult:
    return await store.task_complete([(lease_of(task), result) for task in tasks], now=now)


async def own_all_partitions(store: Store, node: UUID, *, now: datetime = NOW, lease_seconds: float = 10) -> Mapping[int, int]:
    """Make a node the owner of all partitions that have no owner."""
    return (await store.partition_renew(node_heartbeat(node, lease_seconds=lease_seconds), ALL_PARTITIONS, now=now)).owned


async def ledger(store: Store, schedule_id: UUID, tenant_id: UUID = DEFAULT_TENANT) -> list[Tick]:
    return await store.tick_list(tenant_id, schedule_id, from_=LONG_AGO, to=FAR_AHEAD, limit=100_000)


async def count_rows(store: Store, table: str, schedule_id: UUID | None = None) -> int:
    where, values = ("", ()) if schedule_id is None else (" WHERE schedule_id = ?", (schedule_id,))
    ((count,),) = await execute_raw(store, f"SELECT count(*) FROM {table}{where}", *values)
    return int(count)


async def execute_raw(store: Store, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run one statement without going through the store. Parameters are `?`; rows are as the driver returns them."""
    if isinstance(store, SqliteStore):
        connection = apsw.Connection(store.description)
        try:
            connection.set_busy_timeout(10_000)
            bound = [
                value.bytes if isinstance(value, UUID) else to_microseconds(value) if isinstance(value, datetime) else value
                for value in values
            ]
            return list(connection.execute(sql, bound))
        finally:
            connection.close()
    numbers = itertools.count(1)
    numbered = "".join(f"${next(numbers)}" if character == "?" else character for character in sql)
    connection = await asyncpg.connect(url_of(store))
    try:
        return [tuple(row) for row in await connection.fetch(numbered, *values)]
    finally:
        await connection.close()


def url_of(store: Store) -> str:
    """Return the URL of the database, also for a store that goes through a pooler."""
    assert isinstance(store, PostgresStore)
    return store._connections._listen_url


async def apply_unknown_migration(store: Store) -> None:
    """Record a migration that this version does not know, as a newer version of Everbeat would."""
    applied_at = "0" if store.dialect == "sqlite" else "now()"
    await execute_raw(store, f"INSERT INTO everbeat_migrations (number, name, applied_at) VALUES (9000, 'later', {applied_at})")


def open_second_store(store: Store) -> Store:
    """Return a second store on the same database, as another process would open it."""
    if isinstance(store, SqliteStore):
        return SqliteStore(store.description)
    return PostgresStore(url_of(store), listen=False)


class StoreOverride:
    """A store whose subclasses replace some verbs; the others are passed to the inner store."""

    def __init__(self, store: Store) -> None:
        self.inner = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def pool(self, _pool: str) -> Self:
        """Return this store, so that all connection pools use the overridden verbs."""
        return self


class SteppedNode:
    """A node on a store, without loops: its monotonic clock and the database's `now` move only when a test moves them."""

    def __init__(
        self,
        store: Any,
        *,
        now: datetime = NOW,
        lease_seconds: float = 10,
        settings: TickerSettings | None = None,
        name: str = "node",
        total_seconds: float = 7 * 86_400,
        random_fraction: Callable[[], float] = lambda: 0.5,
        export_span: ExportSpan | None = None,
    ) -> None:
        self.store: Store = store
        self.now = now
        self.monotonic = 1000.0
        self.lease_seconds = lease_seconds
        self.renewed = float("-inf")
        self.events: list[Event] = []
        engine = self.engine = Engine(
            store,
            DatabaseClock(lambda: self.monotonic),
            Settings(node_name=name, lease_seconds=lease_seconds, task_total_seconds=total_seconds),
            emit=self.events.append,
            random_fraction=random_fraction,
            ticker_settings=settings or TickerSettings(),
            export_span=export_span,
        )
        self.id = engine.ownership.node_id
        self.timelines, self.quotas, self.event_stream = engine.timelines, engine.quotas, engine.event_stream
        self.long_polls, self.overlap = engine.long_polls, engine.overlap
        self.promoter, self.reaper = engine.promoter, engine.reaper
        self.ownership, self.ticker = engine.ownership, engine.ticker
        self.leases, self.tasks, self.dead_letters = engine.leases, engine.tasks, engine.dead_letters
        self.schedules, self.backfill, self.audit = engine.schedules, engine.backfill, engine.audit

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self.ownership.current())

    def move_to(self, now: datetime) -> None:
        """Advance the time without doing anything."""
        self.monotonic += max((now - self.now).total_seconds(), 0)
        self.now = now

    async def renew(self, now: datetime | None = None) -> None:
        """Send heartbeats until the node's view of the cluster no longer changes."""
        self.move_to(now or self.now)
        self.renewed = self.monotonic
        for _ in range(5):
            if not await self.ownership.run_once(self.now):
                return
        raise AssertionError("the live nodes keep changing")

    async def tick(self, now: datetime | None = None) -> None:
        """Fire everything that is due, under the current lease."""
        self.move_to(now or self.now)
        for _ in range(1000):
            known = len(self.events)
            if not await self.ticker.run_once(self.now):
                return
            if [type(event) for event in self.events[known:]] == [TicksRefused]:
                return  # it would scan again and again until its trust in the lease ends
        raise AssertionError("there is always more to fire")

    async def step(self, now: datetime) -> None:
        """Do what a node does continuously: renew when a third of the lease has passed, then fire."""
        self.move_to(now)
        if self.monotonic - self.renewed >= self.lease_seconds / 3:
            await self.renew()
        await self.tick()

    async def run(self, until: datetime, *, by_seconds: float = 1) -> None:
        """Step through time to the given instant."""
        while self.now < until:
            await self.step(min(self.now + seconds(by_seconds), until))

    async def promote(self, now: datetime | None = None) -> None:
        """Make ready all tasks that have come due."""
        self.move_to(now or self.now)
        while await self.promoter.run_once(self.now):
            pass

    async def reap(self, now: datetime | None = None) -> None:
        """End every attempt whose lease has expired, and release the held tasks that waited for it."""
        self.move_to(now or self.now)
        while await self.reaper.run_once(self.now):
            pass
        await self.release_held()

    async def release_held(self) -> None:
        """Release held tasks: first those of schedules with changes, then those of all schedules."""
        for _ in range(2):
            await self.overlap.run_once(self.now)

    async def put(self, name: str = "job", **more: Any) -> Schedule:
        return (await self.schedules.put(DEFAULT_TENANT, name, definition(name, **more), now=self.now)).schedule

    async def count(self, *, from_: datetime = NOW - timedelta(days=1), to: datetime | None = None) -> AuditCount:
        """Return the audit of the default tenant."""
        return (await self.audit.run(DEFAULT_TENANT, from_=from_, to=to, now=self.now)).total

    def events_of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


def ledger_summary(ticks: Sequence[Tick], start: datetime = NOW) -> list[tuple[float, str, int]]:
    """Summarize ledger rows: seconds since the start, `fired` or the reason, number of ticks."""
    return [((one.scheduled_for - start).total_seconds(), str(one.reason or one.outcome), one.count) for one in ticks]


def make_input(**fields: Any) -> TaskInput:
    """Return the input of a task. Its payload is given as a value."""
    if "payload" in fields:
        fields["payload"] = raw_json(fields["payload"])
    return TaskInput(**fields)

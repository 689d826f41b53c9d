"""The verbs on tasks of the PostgreSQL store: each runs the block of its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from operator import itemgetter
from typing import Any, Protocol, TypeVar
from uuid import UUID

import asyncpg
import uuid_utils.compat

from everbeat.core.access import AuditLogEntry
from everbeat.core.errors import StoreRefused
from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.tasks import Attempt, AttemptEnd, ClaimedTask, LeasedTask, LogLine, NewTask, TaskRecord, TaskState
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.connections import Connection, execute_on, fetch_on
from everbeat.store.queries import Query
from everbeat.store.rows import (
    CANCELLED,
    FIRST_ID,
    LAST_ID,
    MAX_SCANNED,
    REPLACED_REASON,
    KeyedTasks,
    attempt_from_row,
    claim_result,
    claimed_from_row,
    deduplicate,
    flow_starts,
    group_by_key,
    kept_log,
    merge_heartbeats,
    running_from_row,
    submit_result,
    task_from_row,
    within_quota,
)
from everbeat.store.values import (
    CancelResult,
    ClaimRequest,
    ClaimResult,
    CompleteResult,
    EndedAttempt,
    EndResult,
    HeartbeatWrite,
    LeaseRef,
    PromoteResult,
    QueueDepth,
    RenewedLease,
    SubmitResult,
    TaskFilter,
    TaskScan,
)

T = TypeVar("T")

_LISTS = {
    True: ("task_list", "task_list_of_schedule", "task_list_floor"),
    False: ("task_list_past", "task_list_past_of_schedule", "task_list_past_floor"),
}


class Rollback(Exception):
    """Raised inside a transaction to roll it back."""


def _refs(leases: Sequence[LeaseRef]) -> dict[str, list[Any]]:
    return {
        "tenant_ids": [lease.tenant_id for lease in leases],
        "ids": [lease.id for lease in leases],
        "fences": [lease.fence for lease in leases],
    }


class _Base(Protocol):
    """What the other half of the store lends to this one."""

    _queries: dict[str, Query]

    async def clock(self, *, now: datetime | None = None) -> datetime: ...
    async def _fetch(self, block: str, /, **values: Any) -> list[asyncpg.Record]: ...
    async def _execute(self, block: str, /, **values: Any) -> int: ...
    def _transaction(self, verb: str) -> AbstractAsyncContextManager[Connection]: ...
    async def _change_with_audit_log(
        self, block: str, audit_log: Sequence[AuditLogEntry], now: datetime | None, /, **values: Any
    ) -> int: ...
    async def _with_months(self, instants: Sequence[datetime], write: Callable[[], Awaitable[T]]) -> T: ...
    async def _this_month(self, now: datetime | None, write: Callable[[], Awaitable[T]]) -> T: ...


class PostgresTasks(_Base):
    # Submitting

    async def task_submit(
        self,
        tasks: Sequence[NewTask],
        *,
        has_single_key: bool = False,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> SubmitResult:
        keyed = group_by_key(tasks)
        if not tasks:
            return submit_result(tasks, keyed, await self.clock(now=now), {}, set())
        if not keyed.repeats and not audit_log:
            try:
                (row,) = await self._fetch("task_submit", now=now, **task_columns(tasks), **key_columns(tasks, keyed.firsts))
                return submit_result(tasks, keyed, row["moment"], {}, set())
            except StoreRefused as error:
                if not keyed.firsts or not isinstance(error.__cause__, asyncpg.DivisionByZeroError):
                    raise
        return await self._submit_some(tasks, keyed, has_single_key, audit_log, now)

    async def _submit_some(
        self,
        tasks: Sequence[NewTask],
        keyed: KeyedTasks,
        has_single_key: bool,
        audit_log: Sequence[AuditLogEntry],
        now: datetime | None,
    ) -> SubmitResult:
        """Some key may be taken: find out which, and write what is new unless a key was used for something else."""
        mismatched = set(keyed.mismatched)
        taken: dict[int, tuple[UUID, bytes]] = {}
        moment = await self.clock(now=now)
        try:
            async with self._transaction("task_submit") as connection:
                taken = await self._take_keys(connection, tasks, keyed.firsts, now)
                for index in [*taken, *(index for index, first in keyed.repeats.items() if first in taken)]:
                    key = tasks[index].key
                    if key is not None and taken[keyed.repeats.get(index, index)][1] != key.fingerprint:
                        mismatched.add(index)
                if mismatched or (has_single_key and taken):
                    raise Rollback
                new = sorted([*keyed.unkeyed, *(index for index in keyed.firsts.values() if index not in taken)])
                if new:
                    values = {**task_columns([tasks[index] for index in new]), **key_columns(tasks, {}), "now": now}
                    (row,) = await fetch_on(connection, self._queries["task_submit"], **values)
                    moment = row["moment"]
                    await write_audit_log(connection, self._queries, audit_log, now)
        except Rollback:
            pass
        return submit_result(tasks, keyed, moment, taken, mismatched)

    async def _take_keys(
        self, connection: Connection, tasks: Sequence[NewTask], firsts: Mapping[tuple[UUID, str], int], now: datetime | None
    ) -> dict[int, tuple[UUID, bytes]]:
        """Take the keys that are free; what the others stand for already, by the place of the task that asked."""
        rows = await fetch_on(connection, self._queries["task_key_insert"], now=now, **key_columns(tasks, firsts))
        won = {row["task_id"] for row in rows}
        lost = {pair: index for pair, index in firsts.items() if tasks[index].id not in won}
        if not lost:
            return {}
        found = await fetch_on(
            connection,
            self._queries["task_key_find"],
            tenant_ids=[tenant_id for tenant_id, _ in lost],
            keys=[key for _, key in lost],
        )
        return {lost[row["tenant_id"], row["key"]]: (row["task_id"], row["fingerprint"]) for row in found}

    # Leases

    async def task_flows(
        self, tenant_id: UUID | None, queues: Sequence[str], *, after: Sequence[Flow] = (), limit: int
    ) -> list[Flow]:
        starts = flow_starts(tenant_id, queues, after)
        rows = await self._fetch(
            "task_flows",
            queues=[start.queue for start in starts],
            tenant_ids=[start.tenant_id for start in starts],
            priorities=[start.priority for start in starts],
            fair_keys=[start.fair_key for start in starts],
            types=[start.type for start in starts],
            last_tenant_id=tenant_id or LAST_ID,
            limit=limit,
        )
        return [Flow(*row) for row in rows]

    async def task_claim(
        self,
        shares: Sequence[ClaimStep],
        claim_requests: Sequence[ClaimRequest],
        *,
        limited: Collection[UUID] = (),
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> ClaimResult:
        values = {**_claim_request_columns(claim_requests), "total_seconds": total_seconds, "now": now}
        if not limited:
            return _claims(claim_requests, shares, await self._fetch("task_claim", **values, **_share_columns(shares)), {})
        async with self._transaction("task_claim") as connection:
            # Counted by a statement of its own, which sees what others did until the tenants were locked.
            tenants = await fetch_on(connection, self._queries["task_claim_tenants"], tenant_ids=list(limited))
            max_running = {row["id"]: row["max_running"] for row in tenants if row["max_running"] is not None}
            counts = (
                await fetch_on(connection, self._queries["task_claim_running"], tenant_ids=list(max_running))
                if max_running
                else []
            )
            remaining = {row["tenant_id"]: max_running[row["tenant_id"]] - row["count"] for row in counts}
            cut = within_quota(shares, remaining)
            rows = await fetch_on(connection, self._queries["task_claim"], **values, **_share_columns(cut))
        return _claims(claim_requests, cut, rows, remaining)

    async def task_heartbeat(self, heartbeats: Sequence[HeartbeatWrite], *, now: datetime | None = None) -> list[RenewedLease]:
        heartbeats = merge_heartbeats(heartbeats)
        texts = {beat.lease: beat.log or "" for beat in heartbeats}
        values = {
            **_refs([beat.lease for beat in heartbeats]),
            "fractions": [beat.fraction for beat in heartbeats],
            "messages": [beat.message for beat in heartbeats],
            "log_bytes": [len(text.encode()) for text in texts.values()],
        }
        if not any(texts.values()):
            rows = await self._fetch("task_heartbeat", now=now, **values)
        else:

            async def write() -> list[asyncpg.Record]:
                async with self._transaction("task_heartbeat") as connection:
                    rows = await fetch_on(connection, self._queries["task_heartbeat"], now=now, **values)
                    await self._write_log(connection, rows, texts)
                    return rows

            rows = await self._this_month(now, write)
        return [RenewedLease(row["id"], row["fence"], row["lease_until"], row["cancel_requested"]) for row in rows]

    async def _write_log(self, connection: Connection, rows: Sequence[asyncpg.Record], texts: Mapping[LeaseRef, str]) -> None:
        lines = []
        for row in rows:
            text = texts[LeaseRef(row["holder"], row["id"], row["fence"])]
            kept = kept_log(text, row["log_bytes"] - len(text.encode()))
            if kept is not None:
                line = (row["id"], uuid_utils.compat.uuid7(), row["tenant_id"], row["moment"], row["attempt"], row["worker"])
                lines.append((*line, kept))
        if lines:
            names = ("task_ids", "ids", "tenant_ids", "ats", "attempts", "workers", "texts")
            columns = dict(zip(names, map(list, zip(*lines, strict=True)), strict=True))
            await execute_on(connection, self._queries["task_log_insert"], **columns)

    async def task_complete(
        self, results: Sequence[tuple[LeaseRef, str | None]], *, now: datetime | None = None
    ) -> CompleteResult:
        refs = [lease for lease, _ in results]
        values = {**_refs(refs), "results": [result for _, result in results]}
        rows = await self._this_month(now, lambda: self._fetch("task_complete", now=now, **values))
        finished = frozenset((row["id"], row["fence"]) for row in rows)
        missed = [lease for lease in refs if (lease.id, lease.fence) not in finished]
        repeated: frozenset[tuple[UUID, int]] = frozenset()
        if missed:
            repeated = frozenset((row["id"], row["fence"]) for row in await self._fetch("task_completed", **_refs(missed)))
        return CompleteResult(finished, repeated, _schedules(rows), {row["id"]: row["tenant_id"] for row in rows})

    async def task_queues(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        return {row["id"]: row["queue"] for row in await self._fetch("task_queues", ids=list(ids))}

    async def task_running(
        self, leases: Sequence[LeaseRef], *, now: datetime | None = None
    ) -> tuple[datetime, list[LeasedTask]]:
        moment = await self.clock(now=now)
        rows = await self._fetch("task_running", now=now, **_refs(leases))
        return moment, [running_from_row(row) for row in rows]

    async def task_expired(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[LeasedTask]]:
        moment = await self.clock(now=now)
        rows = await self._fetch("task_expired", now=now, limit=limit)
        return moment, [running_from_row(row) for row in rows]

    async def task_end(self, endings: Sequence[AttemptEnd], *, is_expired: bool, now: datetime | None = None) -> EndResult:
        endings = deduplicate(endings, lambda one: (one.id, one.fence))
        # In one order everywhere: two that end the same tasks then wait for each other and do not deadlock.
        endings = sorted(endings, key=lambda one: one.id)
        back = [one for one in endings if one.state in (TaskState.READY, TaskState.SCHEDULED)]
        final = [one for one in endings if one.state not in (TaskState.READY, TaskState.SCHEDULED)]

        async def write() -> list[asyncpg.Record]:
            rows: list[asyncpg.Record] = []
            async with self._transaction("task_end") as connection:
                for block, part in (("task_end", back), ("task_finish", final)):
                    if part:
                        values = {**_endings(part), "is_expired": is_expired, "now": now}
                        rows += await fetch_on(connection, self._queries[block], **values)
            return rows

        rows = await self._this_month(now, write)
        ended = {(one.id, one.fence) for one in final}
        finished = [row for row in rows if (row["id"], row["fence"]) in ended]
        return EndResult(frozenset((row["id"], row["fence"]) for row in rows), _schedules(finished))

    async def task_ended(self, leases: Sequence[LeaseRef]) -> list[EndedAttempt]:
        return [EndedAttempt(**row) for row in await self._fetch("task_ended", **_refs(leases))]

    # Moving

    async def task_promote(self, *, limit: int, now: datetime | None = None) -> PromoteResult:
        (row,) = await self._fetch("task_promote", limit=limit, now=now)
        return PromoteResult(row["moment"], frozenset(row["queues"]), row["count"], row["next_at"])

    async def task_release_held(
        self, schedule_ids: Sequence[UUID] | None, *, limit: int, now: datetime | None = None
    ) -> frozenset[str]:
        if schedule_ids is None:
            held = await self._fetch("task_release_held_any", limit=limit)
        else:
            held = await self._fetch("task_release_held_candidates", ids=list(schedule_ids), limit=limit)
        if not held:
            return frozenset()

        async def write() -> frozenset[str]:
            async with self._transaction("task_release_held") as connection:
                wanted = [row["schedule_id"] for row in held if row["is_there"]]
                schedules = await fetch_on(connection, self._queries["task_release_held_schedules"], ids=wanted)
                replacing = [row["id"] for row in schedules if row["overlap"] == "cancel_previous"]
                if replacing:
                    await self._replace_previous(connection, replacing, now)
                concurrencies = {row["id"]: row["concurrency"] for row in schedules}
                concurrencies |= {row["schedule_id"]: 1 for row in held if not row["is_there"]}
                values = {"ids": list(concurrencies), "concurrencies": list(concurrencies.values()), "now": now}
                rows = await fetch_on(connection, self._queries["task_release_held"], **values)
                return frozenset(row["queue"] for row in rows)

        return await self._this_month(now, write)

    async def _replace_previous(self, connection: Connection, schedule_ids: list[UUID], now: datetime | None) -> None:
        rows = await fetch_on(connection, self._queries["task_release_held_replaced"], ids=schedule_ids)
        for tenant_id in {row["tenant_id"] for row in rows}:
            ids = [row["id"] for row in rows if row["tenant_id"] == tenant_id]
            await self._cancel(connection, tenant_id, ids, REPLACED_REASON, now)

    async def task_cancel(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> CancelResult:
        async def write() -> CancelResult:
            async with self._transaction("task_cancel") as connection:
                cancelled = await self._cancel(connection, tenant_id, list(ids), CANCELLED, now)
                if cancelled.ended or cancelled.requested:
                    await write_audit_log(connection, self._queries, audit_log, now)
                return cancelled

        return await self._this_month(now, write)

    async def _cancel(
        self, connection: Connection, tenant_id: UUID, ids: list[UUID], reason: str, now: datetime | None
    ) -> CancelResult:
        values = {"tenant_id": tenant_id, "ids": ids}
        # Locked first: one that is claimed or put back in this moment must not fall between the two statements.
        await fetch_on(connection, self._queries["task_cancel_lock"], **values)
        ended = await fetch_on(connection, self._queries["task_cancel"], reason=reason, now=now, **values)
        requested = await fetch_on(connection, self._queries["task_cancel_running"], **values)
        return CancelResult(frozenset(row["id"] for row in ended), frozenset(row["id"] for row in requested), _schedules(ended))

    async def task_reschedule(
        self,
        tenant_id: UUID,
        id_: UUID,
        run_at: datetime,
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> int:
        return await self._change_with_audit_log(
            "task_reschedule", audit_log, now, tenant_id=tenant_id, id=id_, run_at=run_at, now=now
        )

    # Reading

    async def task_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[TaskRecord]:
        return [task_from_row(row) for row in await self._fetch("task_find", tenant_id=tenant_id, ids=list(ids))]

    async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int, live: bool) -> TaskScan:
        block, of_schedule, beneath = _LISTS[live]
        values = {**filter_._asdict(), "tenant_id": tenant_id, "before": before or LAST_ID, "limit": limit}
        if filter_.schedule_id is not None:
            rows = await self._fetch(of_schedule, **values)
            return TaskScan([task_from_row(row) for row in rows], None)
        floor = None
        if any(value is not None for value in filter_):
            scan = max(MAX_SCANNED, limit)
            below = await self._fetch(beneath, tenant_id=tenant_id, before=values["before"], scan=scan)
            floor = below[0]["id"] if below else None
        rows = await self._fetch(block, floor=floor or FIRST_ID, **values)
        return TaskScan([task_from_row(row) for row in rows], floor if len(rows) < limit else None)

    async def task_attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        return [attempt_from_row(row) for row in await self._fetch("task_attempts", tenant_id=tenant_id, id=id_)]

    async def task_log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        rows = await self._fetch("task_log", tenant_id=tenant_id, id=id_, after=after or FIRST_ID, limit=limit)
        return [LogLine(**row) for row in rows]

    async def task_ticks(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime) -> list[datetime]:
        rows = await self._fetch("task_ticks", tenant_id=tenant_id, schedule_id=schedule_id, from_at=from_, to_at=to)
        return [row["scheduled_for"] for row in rows]

    async def task_ready_count(self, tenant_id: UUID, *, limit: int) -> int:
        (row,) = await self._fetch("task_ready_count", tenant_id=tenant_id, limit=limit)
        return int(row["count"])

    async def task_depths(self, tenant_id: UUID | None = None) -> list[QueueDepth]:
        return [QueueDepth(**row) for row in await self._fetch("task_depths", tenant_id=tenant_id)]


def _claim_request_columns(claim_requests: Sequence[ClaimRequest]) -> dict[str, Any]:
    firsts, limit = [], 0
    for claim_request in claim_requests:
        firsts.append(limit + 1)
        limit += claim_request.limit
    return {
        "limit": limit,
        "firsts": firsts,
        "workers": [claim_request.worker for claim_request in claim_requests],
        "lease_seconds": [claim_request.lease_seconds for claim_request in claim_requests],
    }


def _share_columns(shares: Sequence[ClaimStep]) -> dict[str, list[Any]]:
    """Shares as columns, and their lanes in two more, which each share has a part of; arrays begin at 1."""
    firsts, lasts, count = [], [], 0
    for share in shares:
        firsts.append(count + 1)
        count += len(share.queue_types)
        lasts.append(count)
    return {
        "tenant_ids": [share.tenant_id for share in shares],
        "priorities": [share.priority for share in shares],
        "fair_keys": [share.fair_key for share in shares],
        "limits": [share.limit for share in shares],
        "first_queue_types": firsts,
        "last_queue_types": lasts,
        "queues": [queue for share in shares for queue, _ in share.queue_types],
        "types": [type_ for share in shares for _, type_ in share.queue_types],
    }


def _claims(
    claim_requests: Sequence[ClaimRequest],
    shares: Sequence[ClaimStep],
    rows: list[asyncpg.Record],
    remaining: Mapping[UUID, int],
) -> ClaimResult:
    tasks: list[list[ClaimedTask]] = [[] for _ in claim_requests]
    claimed_counts = [0] * len(shares)
    for row in sorted(rows, key=lambda row: row["place"]):
        tasks[row["request"] - 1].append(claimed_from_row(row))
        claimed_counts[row["share"] - 1] += 1
    return claim_result(tasks, shares, claimed_counts, remaining)


def key_columns(tasks: Sequence[NewTask], firsts: Mapping[tuple[UUID, str], int]) -> dict[str, list[Any]]:
    keyed = [tasks[index] for index in firsts.values()]
    return {
        "key_tenant_ids": [tenant_id for tenant_id, _ in firsts],
        "keys": [key for _, key in firsts],
        "key_task_ids": [task.id for task in keyed],
        "fingerprints": [task.key.fingerprint for task in keyed if task.key is not None],
    }


_SHAPE = {
    "tenant_ids": "tenant_id",
    "queues": "queue",
    "types": "type",
    "targets": "target",
    "origins": "origin",
    "priorities": "priority",
    "max_attempts": "max_attempts",
    "retries": "retry",
    "timeouts": "timeout_seconds",
    "labels": "labels",
    "fair_keys": "fair_key",
    "run_ats": "run_at",
    "delays": "delay_seconds",
    "schedule_ids": "schedule_id",
    "schedule_names": "schedule_name",
    "scheduled_fors": "scheduled_for",
    "traceparents": "traceparent",
    "lease_owners": "lease_owner",
    "lease_seconds": "lease_seconds",
    "deadlines": "deadline_seconds",
}
_shape_of = itemgetter(*(NewTask._fields.index(field) for field in _SHAPE.values()))


def task_columns(tasks: Sequence[NewTask]) -> dict[str, Sequence[Any]]:
    """New tasks as columns: what is each one's own, and their shapes, of which a batch has few; arrays begin at 1."""
    shapes: dict[tuple[Any, ...], int] = {}
    places, last, place = [], None, 0
    for task in tasks:
        shape = _shape_of(task)
        if shape != last:  # neighbours are mostly alike, and comparing is cheaper than hashing
            place, last = shapes.setdefault(shape, len(shapes) + 1), shape
        places.append(place)
    return {
        "ids": [task.id for task in tasks],
        "partitions": [task.partition for task in tasks],
        "payloads": [task.payload for task in tasks],
        "payload_refs": [task.payload_ref for task in tasks],
        "shapes": places,
        **dict(zip(_SHAPE, zip(*shapes, strict=True), strict=True)),
    }


def _endings(endings: Sequence[AttemptEnd]) -> dict[str, Any]:
    ids, tenant_ids, fences, outcomes, states, run_ats, errors, reasons = map(list, zip(*endings, strict=True))
    return {
        "ids": ids,
        "tenant_ids": tenant_ids,
        "fences": fences,
        "outcomes": outcomes,
        "states": states,
        "run_ats": run_ats,
        "errors": errors,
        "reasons": reasons,
    }


def _schedules(rows: Sequence[Mapping[str, Any]]) -> frozenset[UUID]:
    return frozenset(row["schedule_id"] for row in rows if row["schedule_id"] is not None)

"""The verbs on tasks of the SQLite store: each runs the blocks of its name in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, Protocol
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.core.access import AuditLogEntry
from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.tasks import (
    Attempt,
    AttemptEnd,
    ClaimedTask,
    LeasedTask,
    LogLine,
    NewTask,
    TaskRecord,
    TaskState,
    with_payload_ref,
)
from everbeat.store.rows import (
    CANCELLED,
    FIRST_ID,
    LAST_ID,
    MAX_SCANNED,
    ORIGINS,
    REPLACED_REASON,
    KeyedTasks,
    attempt_from_row,
    claim_result,
    deduplicate,
    flow_starts,
    group_by_key,
    kept_log,
    merge_heartbeats,
    running_from_row,
    submit_result,
    task_from_row,
    text_of,
    within_quota,
)
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.connections import (
    Row,
    SqliteConnections,
    SqliteSession,
    from_microseconds,
    hex_text,
    to_microseconds,
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

Values = tuple[Any, ...]

_LISTS = {
    True: ("task_list", "task_list_of_schedule", "task_list_floor"),
    False: ("task_list_past", "task_list_past_of_schedule", "task_list_past_floor"),
}


class _Base(Protocol):
    """What the other half of the store lends to this one."""

    _connections: SqliteConnections
    _sql: dict[str, str]

    def _moment(self, now: datetime | None) -> datetime: ...
    async def _read(self, block: str, /, **values: Any) -> list[Row]: ...
    async def _change(self, block: str, /, **values: Any) -> int: ...
    async def _change_with_audit_log(
        self, block: str, audit_log: Sequence[AuditLogEntry], now: datetime | None, /, **values: Any
    ) -> int: ...


class Rollback(Exception):
    """Raised inside a transaction to roll it back."""


class SqliteTasks(_Base):
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

        def work(session: SqliteSession) -> SubmitResult:
            moment = self._moment(now)
            taken = self._taken_keys(session, tasks, keyed, moment) if keyed.firsts else {}
            mismatched = set(keyed.mismatched)
            for index in [*taken, *(index for index, first in keyed.repeats.items() if first in taken)]:
                key = tasks[index].key
                if key is not None and taken[keyed.repeats.get(index, index)][1] != key.fingerprint:
                    mismatched.add(index)
            if not mismatched and not (has_single_key and taken):
                new = [task for index, task in enumerate(tasks) if index not in taken and index not in keyed.repeats]
                self._insert(session, new, to_microseconds(moment))
                if new:
                    write_audit_log(session, self._sql, audit_log, moment)
            return submit_result(tasks, keyed, moment, taken, mismatched)

        return await self._connections.write("task_submit", work)

    def _taken_keys(
        self, session: SqliteSession, tasks: Sequence[NewTask], keyed: KeyedTasks, moment: datetime
    ) -> dict[int, tuple[UUID, bytes]]:
        """What keys stand for already, by the place of the task that asked."""
        wanted = text_of([[tenant_id.hex, key] for tenant_id, key in keyed.firsts])
        rows = session.rows(self._sql["task_key_find"], {"keys": wanted, "now": moment})
        return {keyed.firsts[row["tenant_id"], row["key"]]: (row["task_id"], row["fingerprint"]) for row in rows}

    def _insert(self, session: SqliteSession, tasks: Sequence[NewTask], now: int) -> None:
        keys = [
            (task.tenant_id.bytes, task.key.key, task.id.bytes, task.key.fingerprint, now)
            for task in tasks
            if task.key is not None
        ]
        session.change_many(self._sql["task_key_insert"], keys)
        session.change_many(self._sql["task_submit"], [_new_row(task, now) for task in tasks])

    # Leases

    async def task_flows(
        self, tenant_id: UUID | None, queues: Sequence[str], *, after: Sequence[Flow] = (), limit: int
    ) -> list[Flow]:
        last = {"last_tenant_id": tenant_id or LAST_ID, "limit": limit}

        def work(session: SqliteSession) -> list[Flow]:
            starts = flow_starts(tenant_id, queues, after)
            sql = self._sql["task_flows"]
            return [Flow(**row) for start in starts for row in session.rows(sql, {**start._asdict(), **last})]

        return await self._connections.read("task_flows", work)

    async def task_claim(
        self,
        shares: Sequence[ClaimStep],
        claim_requests: Sequence[ClaimRequest],
        *,
        limited: Collection[UUID] = (),
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> ClaimResult:
        limit, total = sum(claim_request.limit for claim_request in claim_requests), _microseconds(total_seconds)

        def work(session: SqliteSession) -> tuple[int, list[list[Values]], list[ClaimStep], list[int], dict[UUID, int]]:
            moment = to_microseconds(self._moment(now))
            remaining = self._remaining_running(session, limited)
            cut = within_quota(shares, remaining)
            picked: list[Values] = []
            claimed_counts: list[int] = []
            while len(claimed_counts) < len(cut):
                for share, found in self._pick_some(session, cut[len(claimed_counts) :], limit - len(picked)):
                    claimed_counts.append(len(found))
                    picked += [(*row, share.tenant_id) for row in found]
            parts, start = [], 0
            for claim_request in claim_requests:
                part = picked[start : start + claim_request.limit]
                start += claim_request.limit
                parts.append(part)
                if part:
                    session.change(self._sql["task_claim"], _lease(claim_request, part, moment, total))
            return moment, parts, cut, claimed_counts, remaining

        moment, parts, cut, claimed_counts, remaining = await self._connections.write("task_claim", work)
        tasks = [
            [_claimed(row, claim_request, moment, total) for row in part]
            for claim_request, part in zip(claim_requests, parts, strict=True)
        ]
        return claim_result(tasks, cut, claimed_counts, remaining)

    def _remaining_running(self, session: SqliteSession, limited: Collection[UUID]) -> dict[UUID, int]:
        """How many more tasks tenants may have running."""
        if not limited:
            return {}
        tenants = session.rows(self._sql["task_claim_tenants"], {"tenant_ids": hex_text(limited)})
        remaining = {row["id"]: row["max_running"] for row in tenants if row["max_running"] is not None}
        for tenant_id in remaining:
            ((count,),) = session.tuples(self._sql["task_claim_running"], {"tenant_id": tenant_id})
            remaining[tenant_id] -= count
        return remaining

    def _pick_some(
        self, session: SqliteSession, shares: Sequence[ClaimStep], limit: int
    ) -> list[tuple[ClaimStep, list[Values]]]:
        """What the first of these shares bring: several at once if they are alike and there is room for all of them."""
        first = shares[0]
        alike = list(takewhile(lambda one: one.limit == first.limit and len(one.queue_types) == 1, shares))
        alike = alike[: limit // first.limit] if first.limit > 0 else []
        if len(alike) < 2:
            return [(first, self._pick(session, first, min(first.limit, limit)))]
        queue_types = [
            (one.queue_types[0][0], one.tenant_id.hex, one.priority, one.fair_key, one.queue_types[0][1]) for one in alike
        ]
        found: list[list[Values]] = [[] for _ in alike]
        for place, *row in session.tuples(
            self._sql["task_claim_picks"], {"queue_types": text_of(queue_types), "limit": first.limit}
        ):
            found[place].append(tuple(row))
        return [(one, sorted(rows, key=lambda row: row[1:3])) for one, rows in zip(alike, found, strict=True)]

    def _pick(self, session: SqliteSession, share: ClaimStep, limit: int) -> list[Values]:
        """The oldest ready tasks of a share, over its lanes."""
        if limit <= 0:
            return []
        sql = self._sql["task_claim_pick"]
        wanted = {"tenant_id": share.tenant_id.bytes, "priority": share.priority, "fair_key": share.fair_key}
        queue_types = [{**wanted, "queue": queue, "type": type_} for queue, type_ in share.queue_types]
        if len(queue_types) == 1:
            return session.tuples(sql, {**queue_types[0], "limit": limit})
        oldest: list[tuple[Any, Any, int]] = []
        for place, queue_type in enumerate(queue_types):
            rows = session.tuples(self._sql["task_claim_oldest"], {**queue_type, "limit": limit})
            oldest += [(run_at, id_, place) for run_at, id_ in rows]
        counts = Counter(place for _, _, place in sorted(oldest)[:limit])
        picked = [row for place, count in counts.items() for row in session.tuples(sql, {**queue_types[place], "limit": count})]
        return sorted(picked, key=lambda row: row[1:3])

    async def task_heartbeat(self, heartbeats: Sequence[HeartbeatWrite], *, now: datetime | None = None) -> list[RenewedLease]:
        merged = merge_heartbeats(heartbeats)
        by_lease = {(_holder(beat.lease), beat.lease.id.bytes, beat.lease.fence): beat for beat in merged}
        leases = _leases(beat.lease for beat in merged)

        def work(session: SqliteSession) -> list[RenewedLease]:
            moment = to_microseconds(self._moment(now))
            found = session.tuples(self._sql["task_heartbeat_find"], {"leases": leases, "now": moment})
            writes, lines, beaten = [], [], []
            for row, tenant_id, holder, id_, fence, is_cancelled, attempt, worker, logged, until in found:
                beat = by_lease[holder, id_, fence]
                text = beat.log or ""
                writes.append((row, until, beat.fraction, beat.message, len(text.encode())))
                if (kept := kept_log(text, logged)) is not None:
                    lines.append((id_, uuid_utils.compat.uuid7().bytes, tenant_id, moment, attempt, worker, kept))
                beaten.append(RenewedLease(beat.lease.id, fence, from_microseconds(until), bool(is_cancelled)))
            session.change_many(self._sql["task_heartbeat"], writes)
            session.change_many(self._sql["task_log_insert"], lines)
            return beaten

        return await self._connections.write("task_heartbeat", work)

    async def task_complete(
        self, results: Sequence[tuple[LeaseRef, str | None]], *, now: datetime | None = None
    ) -> CompleteResult:
        results = deduplicate(results, lambda one: one[0])
        ids = {lease.id.bytes: lease.id for lease, _ in results}
        given = text_of([(_holder(lease), lease.id.hex, lease.fence, result) for lease, result in results])

        def work(session: SqliteSession) -> tuple[list[Values], list[Values]]:
            moment = to_microseconds(self._moment(now))
            finished = session.tuples(self._sql["task_complete_insert"], {"results": given, "now": moment})
            session.change(self._sql["task_complete"], {"ids": text_of([row[0].hex() for row in finished])})
            if len(finished) == len(results):
                return finished, []
            done = {row[:2] for row in finished}
            missed = _leases([lease for lease, _ in results if (lease.id.bytes, lease.fence) not in done])
            return finished, session.tuples(self._sql["task_completed"], {"leases": missed})

        finished, repeated = await self._connections.write("task_complete", work)
        owners = {ids[row[0]]: UUID(bytes=row[3]) for row in finished}
        return CompleteResult(_pairs(finished, ids), _pairs(repeated, ids), _schedules(finished), owners)

    async def task_queues(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        return {row["id"]: row["queue"] for row in await self._read("task_queues", ids=hex_text(ids))}

    async def task_running(
        self, leases: Sequence[LeaseRef], *, now: datetime | None = None
    ) -> tuple[datetime, list[LeasedTask]]:
        moment = self._moment(now)
        return moment, [running_from_row(row) for row in await self._read("task_running", leases=_leases(leases), now=moment)]

    async def task_expired(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[LeasedTask]]:
        moment = self._moment(now)
        return moment, [running_from_row(row) for row in await self._read("task_expired", limit=limit, now=moment)]

    async def task_end(self, endings: Sequence[AttemptEnd], *, is_expired: bool, now: datetime | None = None) -> EndResult:
        endings = deduplicate(endings, lambda one: (one.id, one.fence))
        ids = {one.id.bytes: one.id for one in endings}

        def work(session: SqliteSession) -> list[Values]:
            moment = to_microseconds(self._moment(now))
            back: list[Values] = []
            final: list[Values] = []
            for one in endings:
                row = _ending(one, is_expired, moment)
                (back if one.state in (TaskState.READY, TaskState.SCHEDULED) else final).append(row)
            session.change_many(self._sql["task_end_attempt"], (row[:9] for row in back))
            ended = session.tuples_many(self._sql["task_end"], (row[:9] for row in back))
            session.change_many(self._sql["task_finish_dead_letter"], final)
            session.change_many(self._sql["task_finish_insert"], final)
            return ended + session.tuples_many(self._sql["task_finish"], (row[:5] for row in final))

        rows = await self._connections.write("task_end", work)
        return EndResult(_pairs(rows, ids), _schedules(rows))

    async def task_ended(self, leases: Sequence[LeaseRef]) -> list[EndedAttempt]:
        return [EndedAttempt(**row) for row in await self._read("task_ended", leases=_leases(leases))]

    # Moving

    async def task_promote(self, *, limit: int, now: datetime | None = None) -> PromoteResult:
        def work(session: SqliteSession) -> PromoteResult:
            moment = self._moment(now)
            rows = session.tuples(self._sql["task_promote"], {"limit": limit, "now": to_microseconds(moment)})
            (following,) = session.rows(self._sql["task_promote_next"], {"now": moment})
            return PromoteResult(moment, frozenset(queue for (queue,) in rows), len(rows), following["next_at"])

        return await self._connections.write("task_promote", work)

    async def task_release_held(
        self, schedule_ids: Sequence[UUID] | None, *, limit: int, now: datetime | None = None
    ) -> frozenset[str]:
        def work(session: SqliteSession) -> frozenset[str]:
            if schedule_ids is None:
                held = session.rows(self._sql["task_release_held_any"], {"limit": limit})
            else:
                held = session.rows(self._sql["task_release_held_candidates"], {"ids": hex_text(schedule_ids), "limit": limit})
            wanted = hex_text([row["schedule_id"] for row in held if row["is_there"]])
            schedules = session.rows(self._sql["task_release_held_schedules"], {"ids": wanted})
            moment = self._moment(now)
            self._replace_previous(session, [row["id"] for row in schedules if row["overlap"] == "cancel_previous"], moment)
            concurrencies = {row["id"]: row["concurrency"] for row in schedules}
            concurrencies |= {row["schedule_id"]: 1 for row in held if not row["is_there"]}
            turns = [(id_.bytes, remaining, to_microseconds(moment)) for id_, remaining in concurrencies.items()]
            return frozenset(queue for (queue,) in session.tuples_many(self._sql["task_release_held"], turns))

        return await self._connections.write("task_release_held", work)

    def _replace_previous(self, session: SqliteSession, schedule_ids: Sequence[UUID], moment: datetime) -> None:
        rows = session.rows(self._sql["task_release_held_replaced"], {"ids": hex_text(schedule_ids)}) if schedule_ids else []
        for tenant_id in {row["tenant_id"] for row in rows}:
            self._cancel(
                session, tenant_id, [row["id"] for row in rows if row["tenant_id"] == tenant_id], REPLACED_REASON, moment
            )

    async def task_cancel(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> CancelResult:
        def work(session: SqliteSession) -> CancelResult:
            moment = self._moment(now)
            cancelled = self._cancel(session, tenant_id, ids, CANCELLED, moment)
            if cancelled.ended or cancelled.requested:
                write_audit_log(session, self._sql, audit_log, moment)
            return cancelled

        return await self._connections.write("task_cancel", work)

    def _cancel(
        self, session: SqliteSession, tenant_id: UUID, ids: Sequence[UUID], reason: str, moment: datetime
    ) -> CancelResult:
        values = {"tenant_id": tenant_id, "ids": hex_text(ids)}
        session.change(self._sql["task_cancel_insert"], {**values, "reason": reason, "now": moment})
        ended = session.rows(self._sql["task_cancel"], values)
        requested = session.rows(self._sql["task_cancel_running"], values)
        schedule_ids = frozenset(row["schedule_id"] for row in ended if row["schedule_id"] is not None)
        return CancelResult(frozenset(row["id"] for row in ended), frozenset(row["id"] for row in requested), schedule_ids)

    async def task_reschedule(
        self,
        tenant_id: UUID,
        id_: UUID,
        run_at: datetime,
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> int:
        values = {"tenant_id": tenant_id, "id": id_, "run_at": run_at, "now": self._moment(now)}
        return await self._change_with_audit_log("task_reschedule", audit_log, now, **values)

    # Reading

    async def task_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[TaskRecord]:
        return [task_from_row(row) for row in await self._read("task_find", tenant_id=tenant_id, ids=hex_text(ids))]

    async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int, live: bool) -> TaskScan:
        block, of_schedule, beneath = _LISTS[live]
        values = {**filter_._asdict(), "tenant_id": tenant_id, "before": before or LAST_ID, "limit": limit}

        def work(session: SqliteSession) -> TaskScan:
            if filter_.schedule_id is not None:
                return TaskScan([task_from_row(row) for row in session.rows(self._sql[of_schedule], values)], None)
            floor = None
            if any(value is not None for value in filter_):
                below = session.rows(self._sql[beneath], {**values, "scan": max(MAX_SCANNED, limit)})
                floor = below[0]["id"] if below else None
            rows = session.rows(self._sql[block], {**values, "floor": floor or FIRST_ID})
            return TaskScan([task_from_row(row) for row in rows], floor if len(rows) < limit else None)

        return await self._connections.read("task_list", work)

    async def task_attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        return [attempt_from_row(row) for row in await self._read("task_attempts", tenant_id=tenant_id, id=id_)]

    async def task_log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        rows = await self._read("task_log", tenant_id=tenant_id, id=id_, after=after or FIRST_ID, limit=limit)
        return [LogLine(**row) for row in rows]

    async def task_ticks(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime) -> list[datetime]:
        rows = await self._read("task_ticks", tenant_id=tenant_id, schedule_id=schedule_id, from_at=from_, to_at=to)
        return [row["scheduled_for"] for row in rows]

    async def task_ready_count(self, tenant_id: UUID, *, limit: int) -> int:
        (row,) = await self._read("task_ready_count", tenant_id=tenant_id, limit=limit)
        return int(row["count"])

    async def task_depths(self, tenant_id: UUID | None = None) -> list[QueueDepth]:
        return [QueueDepth(**row) for row in await self._read("task_depths", tenant_id=tenant_id)]


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _new_row(task: NewTask, now: int) -> Values:
    """A new task in the order of task_submit, as SQLite holds it: converting by name would cost more than the insert."""
    if task.run_at is not None:
        run_at = to_microseconds(task.run_at)
    else:
        run_at = now if task.delay_seconds is None else now + round(task.delay_seconds * 1_000_000)
    return (
        task.id.bytes,
        task.tenant_id.bytes,
        task.partition,
        task.queue,
        task.type,
        task.target,
        task.payload,
        task.payload_ref,
        task.origin.value,
        None if task.schedule_id is None else task.schedule_id.bytes,
        task.schedule_name,
        None if task.scheduled_for is None else to_microseconds(task.scheduled_for),
        run_at,
        task.priority,
        "scheduled" if run_at > now else "ready" if task.lease_owner is None else "running",
        task.max_attempts,
        task.retry,
        task.timeout_seconds,
        task.labels,
        task.fair_key,
        task.traceparent,
        now,
        task.lease_owner,
        task.lease_seconds,
        *(_NOT_STARTED if task.lease_owner is None else _started(task, now)),
    )


_NOT_STARTED = (0, 0, None, None, None, None)


def _started(task: NewTask, now: int) -> Values:
    """Attempt, fence, when it began, its deadline and its lease, of a task that begins in the hands of a worker."""
    deadline = now + _microseconds(task.timeout_seconds if task.deadline_seconds is None else task.deadline_seconds)
    return 1, 1, now, now, deadline, min(now + _microseconds(task.lease_seconds), deadline)


def _lease(claim_request: ClaimRequest, share: Sequence[Values], now: int, total: int) -> dict[str, Any]:
    return {
        "rows": text_of([row[0] for row in share]),
        "worker": claim_request.worker,
        "lease_seconds": claim_request.lease_seconds,
        "lease": _microseconds(claim_request.lease_seconds),
        "total": total,
        "now": now,
    }


def _claimed(row: Values, claim_request: ClaimRequest, now: int, total: int) -> ClaimedTask:
    """A row of task_claim_pick after task_claim: under the lease that the block computes alike."""
    _, _, id_, type_, queue, payload, ref, attempt, max_attempts, fence, at, name, schedule_id, origin, *rest = row
    timeout, trace, first, tenant = rest
    lease_until = min(now + _microseconds(claim_request.lease_seconds), now + _microseconds(timeout), (first or now) + total)
    claimed = ClaimedTask(
        id=UUID(bytes=id_),
        type=type_,
        queue=queue,
        payload=msgspec.Raw(payload.encode()),
        attempt=attempt,
        max_attempts=max_attempts,
        fence=fence,
        lease_until=from_microseconds(lease_until),
        lease_seconds=claim_request.lease_seconds,
        scheduled_for=None if at is None else from_microseconds(at),
        schedule=name,
        schedule_id=None if schedule_id is None else UUID(bytes=schedule_id),
        origin=ORIGINS[origin],
        timeout_seconds=timeout,
        traceparent=trace,
        tenant_id=tenant,
    )
    return with_payload_ref(claimed, ref)


def _leases(leases: Iterable[LeaseRef]) -> str:
    return text_of([(_holder(lease), lease.id.hex, lease.fence) for lease in leases])


def _holder(lease: LeaseRef) -> str | None:
    return None if lease.tenant_id is None else lease.tenant_id.hex


def _ending(one: AttemptEnd, is_expired: bool, now: int) -> Values:
    run_at = None if one.run_at is None else to_microseconds(one.run_at)
    lease = (one.id.bytes, one.tenant_id.bytes, one.fence, is_expired, now)
    return (*lease, one.outcome.value, one.state.value, run_at, one.error, one.reason)


def _pairs(rows: Iterable[Values], ids: Mapping[bytes, UUID]) -> frozenset[tuple[UUID, int]]:
    return frozenset((ids[row[0]], row[1]) for row in rows)


def _schedules(rows: Iterable[Values]) -> frozenset[UUID]:
    return frozenset(UUID(bytes=key) for key in {row[2] for row in rows} if key is not None)

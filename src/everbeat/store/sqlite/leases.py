"""Lease verbs of the SQLite store: claim, heartbeat, complete and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import takewhile
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.leases import attempt_deadline, lease_end
from everbeat.core.tasks import (
    AttemptEnd,
    ClaimedTask,
    LeasedTask,
    TaskChange,
    TaskState,
    with_payload_ref,
)
from everbeat.store.rows import (
    FIRST_ID,
    LAST_ID,
    ORIGINS,
    claim_result,
    deduplicate,
    excluded_and_limit,
    flow_starts,
    merge_heartbeats,
    running_from_row,
    text_of,
    triggered_result,
    truncate_log,
    within_quota,
)
from everbeat.store.sqlite.base import SqliteBase
from everbeat.store.sqlite.connections import Row, SqliteSession
from everbeat.store.sqlite.conversions import from_microseconds, hex_text, tenant_of, to_microseconds
from everbeat.store.task_changes import (
    completed_change,
    final_change,
    put_back_change,
)
from everbeat.store.values import (
    NO_RESPONSES,
    ClaimRequest,
    ClaimResult,
    CompleteResult,
    EndedAttempt,
    EndResult,
    HeartbeatWrite,
    LeaseRef,
    ReadyQueue,
    RenewedLease,
)

Values = tuple[Any, ...]


class SqliteLeases(SqliteBase):
    async def task_flows(
        self, tenant_id: UUID | None, queues: Sequence[str], *, after: Sequence[Flow] = (), limit: int
    ) -> list[Flow]:
        last = {"last_tenant_id": tenant_id or LAST_ID, "limit": limit}

        def work(session: SqliteSession) -> list[Flow]:
            starts = flow_starts(tenant_id, queues, after)
            block = self._blocks["task_flows"]
            return [Flow(**row) for start in starts for row in session.rows(block, {**start._asdict(), **last})]

        return await self._connections.read("task_flows", work)

    async def task_ready_queues(self, *, after: ReadyQueue | None, limit: int) -> list[ReadyQueue]:
        start = after or ReadyQueue("", FIRST_ID)
        rows = await self._read("task_ready_queues", **start._asdict(), limit=limit)
        return [ReadyQueue(**row) for row in rows]

    async def task_claim(
        self,
        steps: Sequence[ClaimStep],
        claim_requests: Sequence[ClaimRequest],
        *,
        limited: Collection[UUID] = (),
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> ClaimResult:
        limit = sum(claim_request.limit for claim_request in claim_requests)

        def work(session: SqliteSession) -> tuple[int, list[list[Values]], list[ClaimStep], list[int], dict[UUID, int]]:
            moment = to_microseconds(self._moment(now))
            remaining = self._remaining_running(session, limited)
            paused = session.tuples(self._blocks["task_claim_paused"], {"now": moment})
            allowed = within_quota(_without_paused(steps, paused), remaining)
            picked: list[Values] = []
            claimed_counts: list[int] = []
            while len(claimed_counts) < len(allowed):
                for step, found in self._pick_next(session, allowed[len(claimed_counts) :], limit - len(picked)):
                    claimed_counts.append(len(found))
                    picked += [(*row, step.tenant_id) for row in found]
            parts, start = [], 0
            for claim_request in claim_requests:
                part = picked[start : start + claim_request.limit]
                start += claim_request.limit
                parts.append(part)
                if part:
                    session.change(self._blocks["task_claim"], _lease(claim_request, part, moment, total_seconds))
            return moment, parts, allowed, claimed_counts, remaining

        moment, parts, allowed, claimed_counts, remaining = await self._connections.write("task_claim", work)
        tasks = [
            [_claimed(row, claim_request, moment, total_seconds) for row in part]
            for claim_request, part in zip(claim_requests, parts, strict=True)
        ]
        waited = {
            task.id: _waited_seconds(row, moment)
            for part, rows in zip(tasks, parts, strict=True)
            for task, row in zip(part, rows, strict=True)
        }
        return claim_result(claim_requests, tasks, allowed, claimed_counts, remaining, waited)

    async def task_claim_triggered(
        self,
        tenant_id: UUID | None,
        queues: Sequence[str],
        types: Sequence[str] | None,
        claim_request: ClaimRequest,
        *,
        limited: Collection[UUID] = (),
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> ClaimResult:
        def work(session: SqliteSession) -> tuple[int, list[Values]]:
            moment = to_microseconds(self._moment(now))
            excluded, limit = excluded_and_limit(self._remaining_running(session, limited), claim_request.limit)
            values = {
                "tenant_id": tenant_id,
                "queues": text_of(list(queues)),
                "types": None if types is None else text_of(list(types)),
                "excluded": hex_text(excluded),
                "limit": limit,
                "now": moment,
            }
            picked = session.tuples(self._blocks["task_claim_triggered"], values)
            if picked:
                session.change(self._blocks["task_claim"], _lease(claim_request, picked, moment, total_seconds))
            return moment, picked

        moment, picked = await self._connections.write("task_claim_triggered", work)
        rows = [(*row[:-1], tenant_of(row[-1])) for row in picked]
        tasks = [_claimed(row, claim_request, moment, total_seconds) for row in rows]
        waited = {task.id: _waited_seconds(row, moment) for task, row in zip(tasks, rows, strict=True)}
        return triggered_result(claim_request, tasks, waited)

    def _remaining_running(self, session: SqliteSession, limited: Collection[UUID]) -> dict[UUID, int]:
        """How many more running tasks each of these tenants may have."""
        if not limited:
            return {}
        tenants = session.rows(self._blocks["task_claim_tenants"], {"tenant_ids": hex_text(limited)})
        remaining = {row["id"]: row["max_running"] for row in tenants if row["max_running"] is not None}
        for tenant_id in remaining:
            ((count,),) = session.tuples(self._blocks["task_claim_running"], {"tenant_id": tenant_id})
            remaining[tenant_id] -= count
        return remaining

    def _pick_next(
        self, session: SqliteSession, steps: Sequence[ClaimStep], limit: int
    ) -> list[tuple[ClaimStep, list[Values]]]:
        """Pick the tasks of the first step, or of several similar steps in one statement if `limit` allows all of them."""
        first = steps[0]
        similar = list(takewhile(lambda one: one.limit == first.limit and len(one.queue_types) == 1, steps))
        similar = similar[: limit // first.limit] if first.limit > 0 else []
        if len(similar) < 2:
            return [(first, self._pick(session, first, min(first.limit, limit)))]
        queue_types = [
            (one.queue_types[0][0], one.tenant_id.hex, one.priority, one.fair_key, one.queue_types[0][1]) for one in similar
        ]
        found: list[list[Values]] = [[] for _ in similar]
        for index, *row in session.tuples(
            self._blocks["task_claim_picks"], {"queue_types": text_of(queue_types), "limit": first.limit}
        ):
            found[index].append(tuple(row))
        return [(one, sorted(rows, key=lambda row: row[1:3])) for one, rows in zip(similar, found, strict=True)]

    def _pick(self, session: SqliteSession, step: ClaimStep, limit: int) -> list[Values]:
        """The oldest ready tasks of a step, over its queues and types."""
        if limit <= 0:
            return []
        block = self._blocks["task_claim_pick"]
        wanted = {"tenant_id": step.tenant_id.bytes, "priority": step.priority, "fair_key": step.fair_key}
        queue_types = [{**wanted, "queue": queue, "type": type_} for queue, type_ in step.queue_types]
        if len(queue_types) == 1:
            return session.tuples(block, {**queue_types[0], "limit": limit})
        oldest: list[tuple[Any, Any, int]] = []
        for index, queue_type in enumerate(queue_types):
            rows = session.tuples(self._blocks["task_claim_oldest"], {**queue_type, "limit": limit})
            oldest += [(run_at, id_, index) for run_at, id_ in rows]
        counts = Counter(index for _, _, index in sorted(oldest)[:limit])
        picked = [
            row for index, count in counts.items() for row in session.tuples(block, {**queue_types[index], "limit": count})
        ]
        return sorted(picked, key=lambda row: row[1:3])

    async def task_heartbeat(self, heartbeats: Sequence[HeartbeatWrite], *, now: datetime | None = None) -> list[RenewedLease]:
        merged = merge_heartbeats(heartbeats)
        by_lease = {
            (_tenant_hex(heartbeat.lease), heartbeat.lease.id.bytes, heartbeat.lease.fence): heartbeat for heartbeat in merged
        }
        leases = _leases(heartbeat.lease for heartbeat in merged)

        def work(session: SqliteSession) -> list[RenewedLease]:
            moment = to_microseconds(self._moment(now))
            found = session.tuples(self._blocks["task_heartbeat_find"], {"leases": leases, "now": moment})
            writes, lines, renewed = [], [], []
            for row, tenant_id, lease_tenant, id_, fence, is_cancelled, attempt, worker, logged, until in found:
                heartbeat = by_lease[lease_tenant, id_, fence]
                text = heartbeat.log or ""
                writes.append((row, until, heartbeat.fraction, heartbeat.message, len(text.encode())))
                if (kept := truncate_log(text, logged)) is not None:
                    lines.append((id_, uuid_utils.compat.uuid7().bytes, tenant_id, moment, attempt, worker, kept))
                renewed.append(RenewedLease(heartbeat.lease.id, fence, from_microseconds(until), bool(is_cancelled)))
            session.change_many(self._blocks["task_heartbeat"], writes)
            session.change_many(self._blocks["task_log_insert"], lines)
            return renewed

        return await self._connections.write("task_heartbeat", work)

    async def task_complete(
        self,
        results: Sequence[tuple[LeaseRef, str | None]],
        *,
        responses: Mapping[LeaseRef, str] = NO_RESPONSES,
        now: datetime | None = None,
    ) -> CompleteResult:
        results = deduplicate(results, lambda one: one[0])
        ids = {lease.id.bytes: lease.id for lease, _ in results}
        given = text_of(
            [(_tenant_hex(lease), lease.id.hex, lease.fence, result, responses.get(lease)) for lease, result in results]
        )

        def work(session: SqliteSession) -> tuple[list[Values], list[Values]]:
            moment = to_microseconds(self._moment(now))
            finished = session.tuples(self._blocks["task_complete_insert"], {"results": given, "now": moment})
            session.change(self._blocks["task_complete"], {"ids": text_of([row[0].hex() for row in finished])})
            if len(finished) == len(results):
                return finished, []
            done = {row[:2] for row in finished}
            missed = _leases([lease for lease, _ in results if (lease.id.bytes, lease.fence) not in done])
            return finished, session.tuples(self._blocks["task_completed"], {"leases": missed})

        finished, repeated = await self._connections.write("task_complete", work)
        changes = [_completed(ids[row[0]], row) for row in finished]
        return CompleteResult(_pairs(finished, ids), _pairs(repeated, ids), changes)

    async def task_accept(
        self, acceptances: Sequence[tuple[LeaseRef, float, str | None]], *, now: datetime | None = None
    ) -> list[RenewedLease]:
        def work(session: SqliteSession) -> list[RenewedLease]:
            moment = to_microseconds(self._moment(now))
            values = (
                {**lease._asdict(), "lease_seconds": seconds, "response": response, "now": moment}
                for lease, seconds, response in acceptances
            )
            return [RenewedLease(**row) for row in session.rows_many(self._blocks["task_accept"], values)]

        return await self._connections.write("task_accept", work)

    async def task_running(
        self, leases: Sequence[LeaseRef], *, now: datetime | None = None
    ) -> tuple[datetime, list[LeasedTask]]:
        moment = self._moment(now)
        return moment, [running_from_row(row) for row in await self._read("task_running", leases=_leases(leases), now=moment)]

    async def task_end(self, endings: Sequence[AttemptEnd], *, is_expired: bool, now: datetime | None = None) -> EndResult:
        endings = deduplicate(endings, lambda one: (one.id, one.fence))
        by_lease = {(one.id, one.fence): one for one in endings}

        def work(session: SqliteSession) -> tuple[list[Row], list[Row]]:
            moment = to_microseconds(self._moment(now))
            back: list[Values] = []
            final: list[Values] = []
            for one in endings:
                row = _ending(one, is_expired, moment)
                (back if one.state in (TaskState.READY, TaskState.SCHEDULED) else final).append(row)
            kept = session.rows_many(self._blocks["task_end_attempt"], (row[:10] for row in back))
            attempts = {row.pop("task_id"): row for row in kept}
            ended = session.rows_many(self._blocks["task_end"], (row[:9] for row in back))
            session.change_many(self._blocks["task_finish_dead_letter"], final)
            session.change_many(self._blocks["task_finish_insert"], final)
            finished = session.rows_many(self._blocks["task_finish"], (row[:5] for row in final))
            return [{**row, **attempts[row["id"]]} for row in ended], finished

        put_back, finished = await self._connections.write("task_end", work)
        changes = [put_back_change(row, by_lease[row["id"], row["fence"]]) for row in put_back]
        changes += [final_change(row, by_lease[row["id"], row["fence"]]) for row in finished]
        leases = frozenset((row["id"], row["fence"]) for row in (*put_back, *finished))
        schedule_ids = frozenset(row["schedule_id"] for row in finished if row["schedule_id"] is not None)
        return EndResult(leases, schedule_ids, changes)

    async def task_ended(self, leases: Sequence[LeaseRef]) -> list[EndedAttempt]:
        return [EndedAttempt(**row) for row in await self._read("task_ended", leases=_leases(leases))]


def _without_paused(steps: Sequence[ClaimStep], paused: Sequence[Values]) -> Sequence[ClaimStep]:
    """The steps without the queues that are paused. `paused`: the ids of tenants and the queues, None for all of them."""
    if not paused:
        return steps
    stopped = set(paused)

    def is_paused(tenant: bytes, queue: str) -> bool:
        return not stopped.isdisjoint({(None, None), (tenant, None), (tenant, queue)})

    return [
        step._replace(queue_types=tuple(one for one in step.queue_types if not is_paused(step.tenant_id.bytes, one[0])))
        for step in steps
    ]


def _lease(claim_request: ClaimRequest, picked: Sequence[Values], now: int, total_seconds: float) -> dict[str, Any]:
    return {
        "rows": text_of([row[0] for row in picked]),
        "worker": claim_request.worker,
        "lease_seconds": claim_request.lease_seconds,
        "total_seconds": total_seconds,
        "now": now,
    }


def _claimed(row: Values, claim_request: ClaimRequest, now: int, total_seconds: float) -> ClaimedTask:
    """A claimed task from a row of task_claim_pick."""
    _, _, id_, type_, queue, payload, ref, attempt, max_attempts, fence, at, name, schedule_id, origin, *rest = row
    timeout, trace, first, _, tenant = rest
    claimed = ClaimedTask(
        id=UUID(bytes=id_),
        type=type_,
        queue=queue,
        payload=msgspec.Raw(payload.encode()),
        attempt=attempt,
        max_attempts=max_attempts,
        fence=fence,
        lease_until=_lease_until(now, claim_request.lease_seconds, timeout, first, total_seconds),
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


def _waited_seconds(row: Values, now: int) -> float:
    """The time in ready of a claimed task, from a row of task_claim_pick with its tenant."""
    became_ready_at: int = row[-2]
    return max(0, now - became_ready_at) / 1_000_000


# The tasks of a claim mostly have the same timeout and start for the first time.
@lru_cache(maxsize=1024)
def _lease_until(
    now: int, lease_seconds: float, timeout_seconds: float, first_started_at: int | None, total_seconds: float
) -> datetime:
    """The end of a lease, as task_claim computes it."""
    at = from_microseconds(now)
    first = at if first_started_at is None else from_microseconds(first_started_at)
    return lease_end(at, lease_seconds, attempt_deadline(at, timeout_seconds, first, total_seconds))


def _leases(leases: Iterable[LeaseRef]) -> str:
    return text_of([(_tenant_hex(lease), lease.id.hex, lease.fence) for lease in leases])


def _tenant_hex(lease: LeaseRef) -> str | None:
    return None if lease.tenant_id is None else lease.tenant_id.hex


def _ending(one: AttemptEnd, is_expired: bool, now: int) -> Values:
    run_at = None if one.run_at is None else to_microseconds(one.run_at)
    lease = (one.id.bytes, one.tenant_id.bytes, one.fence, is_expired, now)
    return (*lease, one.outcome.value, one.state.value, run_at, one.error, one.response, one.reason)


def _completed(id_: UUID, row: Values) -> TaskChange:
    """The change for a row of task_complete_insert."""
    _, _, schedule_id, tenant_id, queue, type_, attempt, worker, ran_seconds, timeout_seconds, trace = row
    schedule = None if schedule_id is None else UUID(bytes=schedule_id)
    ran = (ran_seconds, timeout_seconds)
    return completed_change(id_, tenant_of(tenant_id), queue, type_, attempt, schedule, worker, *ran, trace)


def _pairs(rows: Iterable[Values], ids: Mapping[bytes, UUID]) -> frozenset[tuple[UUID, int]]:
    return frozenset((ids[row[0]], row[1]) for row in rows)


def _schedules(rows: Iterable[Values]) -> frozenset[UUID]:
    return frozenset(UUID(bytes=key) for key in {row[2] for row in rows} if key is not None)

"""Lease verbs of the PostgreSQL store: claim, heartbeat, complete and end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

import asyncpg
import uuid_utils.compat

from everbeat.core.errors import StoreLocked
from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.tasks import (
    AttemptEnd,
    ClaimedTask,
    LeasedTask,
    TaskChange,
    TaskState,
)
from everbeat.store.postgres.base import PostgresBase
from everbeat.store.postgres.connections import Connection, execute_on, fetch_on
from everbeat.store.rows import (
    FIRST_ID,
    LAST_ID,
    claim_result,
    claimed_from_row,
    claimed_from_values,
    deduplicate,
    excluded_and_limit,
    flow_starts,
    merge_heartbeats,
    running_from_row,
    schedule_ids_of,
    triggered_result,
    truncate_log,
    within_quota,
)
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

# How long a batch of completions waits for a locked task before it leaves out the locked ones. Locks of heartbeats end earlier.
_COMPLETE_LOCK_TIMEOUT = "10ms"


class PostgresLeases(PostgresBase):
    async def task_flows(
        self, tenant_id: UUID | None, queues: Sequence[str], *, after: Sequence[Flow] = (), limit: int
    ) -> list[Flow]:
        starts = flow_starts(tenant_id, queues, after)
        rows = await self._read(
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

    async def task_ready_queues(self, *, after: ReadyQueue | None, limit: int) -> list[ReadyQueue]:
        start = after or ReadyQueue("", FIRST_ID)
        rows = await self._read("task_ready_queues", **start._asdict(), limit=limit)
        return [ReadyQueue(*row) for row in rows]

    async def task_claim(
        self,
        steps: Sequence[ClaimStep],
        claim_requests: Sequence[ClaimRequest],
        *,
        limited: Collection[UUID] = (),
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> ClaimResult:
        values = {**_claim_request_columns(claim_requests), "total_seconds": total_seconds, "now": now}
        if not limited:
            return _claims(claim_requests, steps, await self._read("task_claim", **values, **_step_columns(steps)), {})

        async def claim(tenants_block: str) -> ClaimResult:
            async with self._transaction("task_claim") as connection:
                remaining = await self._remaining_running(connection, tenants_block, limited)
                allowed = within_quota(steps, remaining)
                rows = await fetch_on(connection, self._queries["task_claim"], **values, **_step_columns(allowed))
            return _claims(claim_requests, allowed, rows, remaining)

        try:
            return await claim("task_claim_tenants")
        except StoreLocked:  # the other tenants do not wait
            return await claim("task_claim_unlocked_tenants")

    async def _remaining_running(
        self, connection: Connection, tenants_block: str, limited: Collection[UUID]
    ) -> dict[UUID, int]:
        """Lock tenants, and count how many more running tasks each may have: none, if it cannot be locked."""
        tenants = await fetch_on(connection, self._queries[tenants_block], tenant_ids=list(limited))
        max_running = {row["id"]: row["max_running"] for row in tenants if row["max_running"] is not None}
        # The count is a separate statement, so that its snapshot is taken after the tenants are locked.
        counts = (
            await fetch_on(connection, self._queries["task_claim_running"], tenant_ids=list(max_running)) if max_running else []
        )
        remaining = {row["tenant_id"]: max_running[row["tenant_id"]] - row["count"] for row in counts}
        if tenants_block == "task_claim_unlocked_tenants":
            remaining |= dict.fromkeys(set(limited) - {row["id"] for row in tenants}, 0)
        return remaining

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
        async with self._transaction("task_claim_triggered") as connection:
            remaining = await self._remaining_running(connection, "task_claim_unlocked_tenants", limited) if limited else {}
            excluded, limit = excluded_and_limit(remaining, claim_request.limit)
            rows = await fetch_on(
                connection,
                self._queries["task_claim_triggered"],
                **_claim_request_columns([claim_request._replace(limit=limit)]),
                tenant_id=tenant_id,
                queues=list(queues),
                types=None if types is None else list(types),
                excluded=excluded,
                total_seconds=total_seconds,
                now=now,
            )
        tasks = [claimed_from_row(row) for row in sorted(rows, key=lambda row: row["place"])]
        return triggered_result(claim_request, tasks, _waited_seconds(rows))

    async def task_heartbeat(self, heartbeats: Sequence[HeartbeatWrite], *, now: datetime | None = None) -> list[RenewedLease]:
        heartbeats = merge_heartbeats(heartbeats)
        texts = {heartbeat.lease: heartbeat.log or "" for heartbeat in heartbeats}
        values = {
            **_refs([heartbeat.lease for heartbeat in heartbeats]),
            "fractions": [heartbeat.fraction for heartbeat in heartbeats],
            "messages": [heartbeat.message for heartbeat in heartbeats],
            "log_bytes": [len(text.encode()) for text in texts.values()],
        }
        if not any(texts.values()):
            rows = await self._read("task_heartbeat", now=now, **values)
        else:

            async def write() -> list[asyncpg.Record]:
                async with self._transaction("task_heartbeat") as connection:
                    rows = await fetch_on(connection, self._queries["task_heartbeat"], now=now, **values)
                    await self._write_log(connection, rows, texts)
                    return rows

            rows = await self._with_current_month(now, write)
        return [
            RenewedLease(row["id"], row["fence"], row["lease_until"], row["cancel_requested"], row["is_locked"]) for row in rows
        ]

    async def _write_log(self, connection: Connection, rows: Sequence[asyncpg.Record], texts: Mapping[LeaseRef, str]) -> None:
        lines = []
        for row in rows:
            if row["is_locked"]:
                continue
            text = texts[LeaseRef(row["lease_tenant_id"], row["id"], row["fence"])]
            kept = truncate_log(text, row["log_bytes"] - len(text.encode()))
            if kept is not None:
                line = (row["id"], uuid_utils.compat.uuid7(), row["tenant_id"], row["moment"], row["attempt"], row["worker"])
                lines.append((*line, kept))
        if lines:
            names = ("task_ids", "ids", "tenant_ids", "ats", "attempts", "workers", "texts")
            columns = dict(zip(names, map(list, zip(*lines, strict=True)), strict=True))
            await execute_on(connection, self._queries["task_log_insert"], **columns)

    async def task_complete(
        self,
        results: Sequence[tuple[LeaseRef, str | None]],
        *,
        responses: Mapping[LeaseRef, str] = NO_RESPONSES,
        now: datetime | None = None,
    ) -> CompleteResult:
        refs = [lease for lease, _ in results]
        values = {
            **_refs(refs),
            "results": [result for _, result in results],
            "responses": [responses.get(lease) for lease in refs] if responses else None,
        }

        async def write() -> list[asyncpg.Record]:
            complete, fallback = self._queries["task_complete"], self._queries["task_complete_unlocked"]
            try:
                return await self._connections.fetch_once(
                    self._pool_name, complete, now=now, lock_timeout=_COMPLETE_LOCK_TIMEOUT, **values
                )
            except StoreLocked:  # the other tasks do not wait
                return await self._connections.fetch_once(self._pool_name, fallback, now=now, **values)

        found = await self._with_current_month(now, write)
        # Unpacked, because a lookup by name takes longer than everything else that is done with a row.
        finished, locked, changes = set[tuple[UUID, int]](), set[tuple[UUID, int]](), list[TaskChange]()
        for id_, fence, schedule_id, tenant_id, queue, type_, attempt, worker, ran, timeout, traceparent, is_locked in found:
            if is_locked:
                locked.add((id_, fence))
            else:
                finished.add((id_, fence))
                changes.append(
                    completed_change(id_, tenant_id, queue, type_, attempt, schedule_id, worker, ran, timeout, traceparent)
                )
        repeated: frozenset[tuple[UUID, int]] = frozenset()
        if len(finished) < len(refs):
            known = finished | locked
            if missed := [lease for lease in refs if (lease.id, lease.fence) not in known]:
                repeated = _lease_pairs(await self._read("task_completed", **_refs(missed)))
        return CompleteResult(finished, repeated, changes, locked)

    async def task_accept(
        self, acceptances: Sequence[tuple[LeaseRef, float, str | None]], *, now: datetime | None = None
    ) -> list[RenewedLease]:
        values = {
            **_refs([lease for lease, _, _ in acceptances]),
            "lease_seconds": [seconds for _, seconds, _ in acceptances],
            "responses": [response for _, _, response in acceptances],
        }
        return [RenewedLease(**row) for row in await self._read("task_accept", now=now, **values)]

    async def task_running(
        self, leases: Sequence[LeaseRef], *, now: datetime | None = None
    ) -> tuple[datetime, list[LeasedTask]]:
        moment = await self.clock(now=now)
        rows = await self._read("task_running", now=now, **_refs(leases))
        return moment, [running_from_row(row) for row in rows]

    async def task_end(self, endings: Sequence[AttemptEnd], *, is_expired: bool, now: datetime | None = None) -> EndResult:
        endings = deduplicate(endings, lambda one: (one.id, one.fence))
        # Sorted, so that two transactions that end the same tasks lock them in the same order and cannot deadlock.
        endings = sorted(endings, key=lambda one: one.id)
        back = [one for one in endings if one.state in (TaskState.READY, TaskState.SCHEDULED)]
        final = [one for one in endings if one.state not in (TaskState.READY, TaskState.SCHEDULED)]

        async def write() -> list[list[asyncpg.Record]]:
            found: list[list[asyncpg.Record]] = []
            async with self._transaction("task_end") as connection:
                for block, part in (("task_end", back), ("task_finish", final)):
                    values = {**_endings(part), "is_expired": is_expired, "now": now} if part else {}
                    found.append(await fetch_on(connection, self._queries[block], **values) if part else [])
            return found

        ended = await self._with_current_month(now, write)
        locked = _lease_pairs(row for rows in ended for row in rows if row["is_locked"])
        put_back, finished = ([row for row in rows if not row["is_locked"]] for rows in ended)
        by_lease = {(one.id, one.fence): one for one in endings}
        changes = [put_back_change(row, by_lease[row["id"], row["fence"]]) for row in put_back]
        changes += [final_change(row, by_lease[row["id"], row["fence"]]) for row in finished]
        return EndResult(_lease_pairs((*put_back, *finished)), schedule_ids_of(finished), changes, locked)

    async def task_ended(self, leases: Sequence[LeaseRef]) -> list[EndedAttempt]:
        return [EndedAttempt(**row) for row in await self._read("task_ended", **_refs(leases))]


def _lease_pairs(rows: Iterable[asyncpg.Record]) -> frozenset[tuple[UUID, int]]:
    return frozenset((row["id"], row["fence"]) for row in rows)


def _refs(leases: Sequence[LeaseRef]) -> dict[str, list[Any]]:
    return {
        "tenant_ids": [lease.tenant_id for lease in leases],
        "ids": [lease.id for lease in leases],
        "fences": [lease.fence for lease in leases],
    }


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


def _step_columns(steps: Sequence[ClaimStep]) -> dict[str, list[Any]]:
    """Steps as columns. The queues and types of all steps are in two more arrays, of which each step has a slice.

    SQL arrays begin at 1.
    """
    firsts, lasts, count = [], [], 0
    for step in steps:
        firsts.append(count + 1)
        count += len(step.queue_types)
        lasts.append(count)
    return {
        "tenant_ids": [step.tenant_id for step in steps],
        "priorities": [step.priority for step in steps],
        "fair_keys": [step.fair_key for step in steps],
        "limits": [step.limit for step in steps],
        "first_queue_types": firsts,
        "last_queue_types": lasts,
        "queues": [queue for step in steps for queue, _ in step.queue_types],
        "types": [type_ for step in steps for _, type_ in step.queue_types],
    }


def _claims(
    claim_requests: Sequence[ClaimRequest],
    steps: Sequence[ClaimStep],
    rows: list[asyncpg.Record],
    remaining: Mapping[UUID, int],
) -> ClaimResult:
    tasks: list[list[ClaimedTask]] = [[] for _ in claim_requests]
    claimed_counts = [0] * len(steps)
    waited_seconds: dict[UUID, float] = {}
    for row in sorted(rows, key=itemgetter(1)):
        request, _, step, *values, waited = row
        task = claimed_from_values(*values)
        tasks[request - 1].append(task)
        claimed_counts[step - 1] += 1
        waited_seconds[task.id] = waited
    return claim_result(claim_requests, tasks, steps, claimed_counts, remaining, waited_seconds)


def _waited_seconds(rows: Iterable[asyncpg.Record]) -> dict[UUID, float]:
    return {row["id"]: row["waited_seconds"] for row in rows}


def _endings(endings: Sequence[AttemptEnd]) -> dict[str, Any]:
    ids, tenant_ids, fences, outcomes, states, run_ats, errors, reasons, responses = map(list, zip(*endings, strict=True))
    return {
        "ids": ids,
        "tenant_ids": tenant_ids,
        "fences": fences,
        "outcomes": outcomes,
        "states": states,
        "run_ats": run_ats,
        "errors": errors,
        "reasons": reasons,
        "responses": responses,
    }

"""The verbs on tasks and dead letters of the SQLite store: each runs the blocks of its name in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.core.tasks import Attempt, ClaimedTask, DeadLetter, Ending, LogLine, NewTask, RunningTask, Task, TaskState
from everbeat.store.base import (
    Beaten,
    BeatWrite,
    Cancelled,
    Claimer,
    Completed,
    DeadFilter,
    Ended,
    LeaseRef,
    PastEnding,
    Promoted,
    QueueDepth,
    Replay,
    Submitted,
    TaskFilter,
    TaskScan,
)
from everbeat.store.rows import (
    CANCELLED,
    EARLIEST,
    FIRST_ID,
    LAST_ID,
    LATEST,
    MOST_SCANNED,
    ORIGINS,
    SUPERSEDED,
    Keyed,
    attempt_from_row,
    by_key,
    dead_letter_from_row,
    kept_log,
    merged_beats,
    running_from_row,
    submitted_of,
    task_from_row,
    text_of,
    without_repeats,
)
from everbeat.store.sqlite.connections import Connections, Row, Session, from_microseconds, hex_text, to_microseconds

Values = tuple[Any, ...]

_LISTS = {
    True: ("task_list", "task_list_of_schedule", "task_list_floor"),
    False: ("task_list_past", "task_list_past_of_schedule", "task_list_past_floor"),
}


class _Base(Protocol):
    """What the other half of the store lends to this one."""

    _connections: Connections
    _sql: dict[str, str]

    def _moment(self, now: datetime | None) -> datetime: ...
    async def _read(self, block: str, /, **values: Any) -> list[Row]: ...
    async def _change(self, block: str, /, **values: Any) -> int: ...


class SqliteTasks(_Base):
    # Submitting

    async def task_submit(self, tasks: Sequence[NewTask], *, is_one: bool = False, now: datetime | None = None) -> Submitted:
        keyed = by_key(tasks)

        def work(session: Session) -> Submitted:
            moment = self._moment(now)
            taken = self._taken_keys(session, tasks, keyed, moment) if keyed.firsts else {}
            mismatched = set(keyed.mismatched)
            for index in [*taken, *(index for index, first in keyed.repeats.items() if first in taken)]:
                key = tasks[index].key
                if key is not None and taken[keyed.repeats.get(index, index)][1] != key.fingerprint:
                    mismatched.add(index)
            if not mismatched and not (is_one and taken):
                new = [task for index, task in enumerate(tasks) if index not in taken and index not in keyed.repeats]
                self._insert(session, new, to_microseconds(moment))
            return submitted_of(tasks, keyed, moment, taken, mismatched)

        return await self._connections.write("task_submit", work)

    def _taken_keys(
        self, session: Session, tasks: Sequence[NewTask], keyed: Keyed, moment: datetime
    ) -> dict[int, tuple[UUID, bytes]]:
        """What keys stand for already, by the place of the task that asked."""
        wanted = text_of([[tenant_id.hex, key] for tenant_id, key in keyed.firsts])
        rows = session.rows(self._sql["task_key_find"], {"keys": wanted, "now": moment})
        return {keyed.firsts[row["tenant_id"], row["key"]]: (row["task_id"], row["fingerprint"]) for row in rows}

    def _insert(self, session: Session, tasks: Sequence[NewTask], now: int) -> None:
        keys = [
            (task.tenant_id.bytes, task.key.key, task.id.bytes, task.key.fingerprint, now)
            for task in tasks
            if task.key is not None
        ]
        session.change_many(self._sql["task_key_insert"], keys)
        session.change_many(self._sql["task_submit"], [_new_row(task, now) for task in tasks])

    # Leases

    async def task_claim(
        self,
        tenant_id: UUID,
        queues: Sequence[str],
        claimers: Sequence[Claimer],
        *,
        types: Sequence[str] | None = None,
        total_seconds: float = 7 * 86_400,
        now: datetime | None = None,
    ) -> list[list[ClaimedTask]]:
        limit, total = sum(claimer.limit for claimer in claimers), _microseconds(total_seconds)
        wanted = {"tenant_id": tenant_id.bytes, "types": None if types is None else text_of(list(types)), "limit": limit}

        def work(session: Session) -> tuple[int, list[list[Values]]]:
            moment = to_microseconds(self._moment(now))
            picked: list[Values] = []
            for queue in dict.fromkeys(queues):
                picked += session.tuples(self._sql["task_claim_pick"], {**wanted, "queue": queue})
            picked.sort(key=lambda row: row[1:4])
            shares, start = [], 0
            for claimer in claimers:
                share = picked[start : min(start + claimer.limit, limit)]
                start += claimer.limit
                shares.append(share)
                if share:
                    session.change(self._sql["task_claim"], _lease(claimer, share, moment, total))
            return moment, shares

        moment, shares = await self._connections.write("task_claim", work)
        return [
            [_claimed(row, claimer, moment, total) for row in share] for claimer, share in zip(claimers, shares, strict=True)
        ]

    async def task_heartbeat(self, beats: Sequence[BeatWrite], *, now: datetime | None = None) -> list[Beaten]:
        merged = merged_beats(beats)
        by_lease = {(beat.lease.tenant_id.bytes, beat.lease.id.bytes, beat.lease.fence): beat for beat in merged}
        leases = _leases(beat.lease for beat in merged)

        def work(session: Session) -> list[Beaten]:
            moment = to_microseconds(self._moment(now))
            found = session.tuples(self._sql["task_heartbeat_find"], {"leases": leases, "now": moment})
            writes, lines, beaten = [], [], []
            for row, tenant_id, id_, fence, is_cancelled, attempt, worker, logged, until in found:
                beat = by_lease[tenant_id, id_, fence]
                text = beat.log or ""
                writes.append((row, until, beat.fraction, beat.message, len(text.encode())))
                if (kept := kept_log(text, logged)) is not None:
                    lines.append((id_, uuid_utils.compat.uuid7().bytes, tenant_id, moment, attempt, worker, kept))
                beaten.append(Beaten(beat.lease.id, fence, from_microseconds(until), bool(is_cancelled)))
            session.change_many(self._sql["task_heartbeat"], writes)
            session.change_many(self._sql["task_log_insert"], lines)
            return beaten

        return await self._connections.write("task_heartbeat", work)

    async def task_complete(self, results: Sequence[tuple[LeaseRef, str | None]], *, now: datetime | None = None) -> Completed:
        results = without_repeats(results, lambda one: one[0])
        ids = {lease.id.bytes: lease.id for lease, _ in results}
        given = text_of([(lease.tenant_id.hex, lease.id.hex, lease.fence, result) for lease, result in results])

        def work(session: Session) -> tuple[list[Values], list[Values]]:
            moment = to_microseconds(self._moment(now))
            finished = session.tuples(self._sql["task_complete_insert"], {"results": given, "now": moment})
            session.change(self._sql["task_complete"], {"ids": text_of([row[0].hex() for row in finished])})
            if len(finished) == len(results):
                return finished, []
            done = {row[:2] for row in finished}
            missed = _leases([lease for lease, _ in results if (lease.id.bytes, lease.fence) not in done])
            return finished, session.tuples(self._sql["task_completed"], {"leases": missed})

        finished, repeated = await self._connections.write("task_complete", work)
        return Completed(_pairs(finished, ids), _pairs(repeated, ids), _schedules(finished))

    async def task_running(
        self, leases: Sequence[LeaseRef], *, now: datetime | None = None
    ) -> tuple[datetime, list[RunningTask]]:
        moment = self._moment(now)
        return moment, [running_from_row(row) for row in await self._read("task_running", leases=_leases(leases), now=moment)]

    async def task_expired(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[RunningTask]]:
        moment = self._moment(now)
        return moment, [running_from_row(row) for row in await self._read("task_expired", limit=limit, now=moment)]

    async def task_end(self, endings: Sequence[Ending], *, is_expired: bool, now: datetime | None = None) -> Ended:
        endings = without_repeats(endings, lambda one: (one.id, one.fence))
        ids = {one.id.bytes: one.id for one in endings}

        def work(session: Session) -> list[Values]:
            moment = to_microseconds(self._moment(now))
            back: list[Values] = []
            final: list[Values] = []
            for one in endings:
                row = _ending(one, is_expired, moment)
                (back if one.state in (TaskState.READY, TaskState.SCHEDULED) else final).append(row)
            session.change_many(self._sql["task_end_attempt"], (row[:9] for row in back))
            ended = session.tuples_many(self._sql["task_end"], (row[:9] for row in back))
            session.change_many(self._sql["task_finish_bury"], final)
            session.change_many(self._sql["task_finish_insert"], final)
            return ended + session.tuples_many(self._sql["task_finish"], (row[:5] for row in final))

        rows = await self._connections.write("task_end", work)
        return Ended(_pairs(rows, ids), _schedules(rows))

    async def task_ended(self, leases: Sequence[LeaseRef]) -> list[PastEnding]:
        return [PastEnding(**row) for row in await self._read("task_ended", leases=_leases(leases))]

    # Moving

    async def task_promote(self, *, limit: int, now: datetime | None = None) -> Promoted:
        def work(session: Session) -> Promoted:
            moment = self._moment(now)
            rows = session.tuples(self._sql["task_promote"], {"limit": limit, "now": to_microseconds(moment)})
            (following,) = session.rows(self._sql["task_promote_next"], {"now": moment})
            return Promoted(moment, frozenset(queue for (queue,) in rows), len(rows), following["next_at"])

        return await self._connections.write("task_promote", work)

    async def task_turn(
        self, schedule_ids: Sequence[UUID] | None, *, limit: int, now: datetime | None = None
    ) -> frozenset[str]:
        def work(session: Session) -> frozenset[str]:
            if schedule_ids is None:
                held = session.rows(self._sql["task_turn_any"], {"limit": limit})
            else:
                held = session.rows(self._sql["task_turn_held"], {"ids": hex_text(schedule_ids), "limit": limit})
            wanted = hex_text([row["schedule_id"] for row in held if row["is_there"]])
            schedules = session.rows(self._sql["task_turn_schedules"], {"ids": wanted})
            moment = self._moment(now)
            self._supersede(session, [row["id"] for row in schedules if row["overlap"] == "cancel_previous"], moment)
            rooms = {row["id"]: row["concurrency"] for row in schedules}
            rooms |= {row["schedule_id"]: 1 for row in held if not row["is_there"]}
            turns = [(id_.bytes, room, to_microseconds(moment)) for id_, room in rooms.items()]
            return frozenset(queue for (queue,) in session.tuples_many(self._sql["task_turn"], turns))

        return await self._connections.write("task_turn", work)

    def _supersede(self, session: Session, schedule_ids: Sequence[UUID], moment: datetime) -> None:
        rows = session.rows(self._sql["task_turn_supersede"], {"ids": hex_text(schedule_ids)}) if schedule_ids else []
        for tenant_id in {row["tenant_id"] for row in rows}:
            self._cancel(session, tenant_id, [row["id"] for row in rows if row["tenant_id"] == tenant_id], SUPERSEDED, moment)

    async def task_cancel(self, tenant_id: UUID, ids: Sequence[UUID], *, now: datetime | None = None) -> Cancelled:
        return await self._connections.write(
            "task_cancel", lambda session: self._cancel(session, tenant_id, ids, CANCELLED, self._moment(now))
        )

    def _cancel(self, session: Session, tenant_id: UUID, ids: Sequence[UUID], reason: str, moment: datetime) -> Cancelled:
        values = {"tenant_id": tenant_id, "ids": hex_text(ids)}
        session.change(self._sql["task_cancel_insert"], {**values, "reason": reason, "now": moment})
        ended = session.rows(self._sql["task_cancel"], values)
        told = session.rows(self._sql["task_cancel_running"], values)
        schedule_ids = frozenset(row["schedule_id"] for row in ended if row["schedule_id"] is not None)
        return Cancelled(frozenset(row["id"] for row in ended), frozenset(row["id"] for row in told), schedule_ids)

    async def task_reschedule(self, tenant_id: UUID, id_: UUID, run_at: datetime, *, now: datetime | None = None) -> int:
        return await self._change("task_reschedule", tenant_id=tenant_id, id=id_, run_at=run_at, now=self._moment(now))

    # Reading

    async def task_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[Task]:
        return [task_from_row(row) for row in await self._read("task_find", tenant_id=tenant_id, ids=hex_text(ids))]

    async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int, live: bool) -> TaskScan:
        block, of_schedule, beneath = _LISTS[live]
        values = {**filter_._asdict(), "tenant_id": tenant_id, "before": before or LAST_ID, "limit": limit}

        def work(session: Session) -> TaskScan:
            if filter_.schedule_id is not None:
                return TaskScan([task_from_row(row) for row in session.rows(self._sql[of_schedule], values)], None)
            floor = None
            if any(value is not None for value in filter_):
                below = session.rows(self._sql[beneath], {**values, "scan": max(MOST_SCANNED, limit)})
                floor = below[0]["id"] if below else None
            rows = session.rows(self._sql[block], {**values, "floor": floor or FIRST_ID})
            return TaskScan([task_from_row(row) for row in rows], floor if len(rows) < limit else None)

        return await self._connections.read("task_list", work)

    async def task_attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        return [attempt_from_row(row) for row in await self._read("task_attempts", tenant_id=tenant_id, id=id_)]

    async def task_log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        rows = await self._read("task_log", tenant_id=tenant_id, id=id_, after=after or FIRST_ID, limit=limit)
        return [LogLine(**row) for row in rows]

    async def task_ticks(self, schedule_id: UUID, *, from_: datetime, to: datetime) -> list[datetime]:
        rows = await self._read("task_ticks", schedule_id=schedule_id, from_at=from_, to_at=to)
        return [row["scheduled_for"] for row in rows]

    async def task_depths(self) -> list[QueueDepth]:
        return [QueueDepth(**row) for row in await self._read("task_depths")]

    # Dead letters

    async def dead_find(self, tenant_id: UUID, task_ids: Sequence[UUID]) -> list[DeadLetter]:
        rows = await self._read("dead_find", tenant_id=tenant_id, task_ids=hex_text(task_ids))
        return [dead_letter_from_row(row) for row in rows]

    async def dead_list(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        before: tuple[datetime, UUID] | None,
        limit: int,
        only_unplayed: bool = False,
    ) -> list[DeadLetter]:
        before_at, before_id = before or (LATEST, LAST_ID)
        rows = await self._read(
            "dead_list",
            **_dead_filter(filter_),
            tenant_id=tenant_id,
            before_at=before_at,
            before_id=before_id,
            limit=limit,
            only_unplayed=only_unplayed,
        )
        return [dead_letter_from_row(row) for row in rows]

    async def dead_replay(
        self, tenant_id: UUID, replays: Sequence[Replay], *, again: bool, now: datetime | None = None
    ) -> list[UUID]:
        replays = without_repeats(replays, lambda one: one.task_id)

        def work(session: Session) -> list[UUID]:
            moment = to_microseconds(self._moment(now))
            notes = [(one.task_id.bytes, tenant_id.bytes, one.task.id.bytes, moment, again) for one in replays]
            noted = {id_ for (id_,) in session.tuples_many(self._sql["dead_replay"], notes)}
            done = [one for one in replays if one.task_id.bytes in noted]
            session.change_many(self._sql["task_submit"], [_new_row(one.task, moment) for one in done])
            return [one.task_id for one in done]

        return await self._connections.write("dead_replay", work)

    async def dead_purge(self, tenant_id: UUID, filter_: DeadFilter, *, limit: int, now: datetime | None = None) -> int:
        values = {**_dead_filter(filter_), "tenant_id": tenant_id, "limit": limit, "now": self._moment(now)}
        return await self._change("dead_purge", **values)


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


def _lease(claimer: Claimer, share: Sequence[Values], now: int, total: int) -> dict[str, Any]:
    return {
        "rows": text_of([row[0] for row in share]),
        "worker": claimer.worker,
        "lease_seconds": claimer.lease_seconds,
        "lease": _microseconds(claimer.lease_seconds),
        "total": total,
        "now": now,
    }


def _claimed(row: Values, claimer: Claimer, now: int, total: int) -> ClaimedTask:
    """A row of task_claim_pick after task_claim: under the lease that the block computes alike."""
    _, _, _, id_, type_, queue, payload, attempt, most, fence, at, name, schedule_id, origin, timeout, trace, first = row
    lease_until = min(now + _microseconds(claimer.lease_seconds), now + _microseconds(timeout), (first or now) + total)
    return ClaimedTask(
        id=UUID(bytes=id_),
        type=type_,
        queue=queue,
        payload=msgspec.Raw(payload.encode()),
        attempt=attempt,
        max_attempts=most,
        fence=fence,
        lease_until=from_microseconds(lease_until),
        lease_seconds=claimer.lease_seconds,
        scheduled_for=None if at is None else from_microseconds(at),
        schedule=name,
        schedule_id=None if schedule_id is None else UUID(bytes=schedule_id),
        origin=ORIGINS[origin],
        timeout_seconds=timeout,
        traceparent=trace,
    )


def _leases(leases: Iterable[LeaseRef]) -> str:
    return text_of([(lease.tenant_id.hex, lease.id.hex, lease.fence) for lease in leases])


def _ending(one: Ending, is_expired: bool, now: int) -> Values:
    run_at = None if one.run_at is None else to_microseconds(one.run_at)
    lease = (one.id.bytes, one.tenant_id.bytes, one.fence, is_expired, now)
    return (*lease, one.outcome.value, one.state.value, run_at, one.error, one.reason)


def _pairs(rows: Iterable[Values], ids: Mapping[bytes, UUID]) -> frozenset[tuple[UUID, int]]:
    return frozenset((ids[row[0]], row[1]) for row in rows)


def _schedules(rows: Iterable[Values]) -> frozenset[UUID]:
    return frozenset(UUID(bytes=key) for key in {row[2] for row in rows} if key is not None)


def _dead_filter(filter_: DeadFilter) -> dict[str, Any]:
    task_ids = None if filter_.task_ids is None else hex_text(filter_.task_ids)
    from_at, to_at = filter_.from_at or EARLIEST, filter_.to_at or LATEST
    return {**filter_._asdict(), "from_at": from_at, "to_at": to_at, "task_ids": task_ids}

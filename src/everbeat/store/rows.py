"""Converts domain objects to table rows and back, for both dialects. A store converts only the scalar types of its driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from everbeat.core.bulk import MAX_ERRORS, BulkAction, BulkError, BulkOperation, BulkProgress, BulkState, BulkSubject
from everbeat.core.calendars import Calendar, parse_calendar
from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import EverbeatError, StoreUnusable
from everbeat.core.fairness import ClaimStep, Flow
from everbeat.core.hooks import hooks_from_text, hooks_text
from everbeat.core.pauses import Pause
from everbeat.core.rules import DstFold, DstGap, Rule, TriggerKind
from everbeat.core.schedules import CatchUp, Overlap, PastRule, Retry, Schedule, Spec, Status
from everbeat.core.submissions import target_of
from everbeat.core.targets import target_from_text
from everbeat.core.tasks import (
    Attempt,
    AttemptOutcome,
    ClaimedTask,
    DeadLetter,
    LeasedTask,
    NewTask,
    Origin,
    TaskChange,
    TaskChangeKind,
    TaskRecord,
    TaskState,
    with_payload_ref,
)
from everbeat.core.ticks import Outcome, Skip, SkipReason, Tick
from everbeat.core.workers import WorkerInfo, WorkerState
from everbeat.store.task_changes import SLICE, claimed_changes, fired_change
from everbeat.store.values import (
    AuditedSchedule,
    ClaimRequest,
    ClaimResult,
    DayTotal,
    DueSchedule,
    Fired,
    FireResult,
    Firing,
    HeartbeatWrite,
    LeaseRef,
    NodeInfo,
    SubmitResult,
    TickTotal,
)

T = TypeVar("T")
Row = Mapping[str, Any]

FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
MAX_SCANNED = 20_000
# The reason of a task that ended before it started.
CANCEL_REASONS = {
    TaskChangeKind.CANCELLED: "cancelled before it started",
    TaskChangeKind.REPLACED: "replaced by a newer tick of its schedule",
}

_encode = msgspec.json.Encoder().encode
_retry_from_json = msgspec.json.Decoder(Retry).decode
_rule_from_json = msgspec.json.Decoder(Rule).decode
_calendars_from_json = msgspec.json.Decoder(dict[str, tuple[str, ...]]).decode
_names_from_json = msgspec.json.Decoder(tuple[str, ...]).decode
_decode = msgspec.json.Decoder().decode


def text_of(value: Any) -> str:
    return _encode(value).decode()


def schedule_to_row(schedule: Schedule) -> dict[str, Any]:
    spec, rule = schedule.spec, schedule.spec.rule
    return {
        "id": schedule.id,
        "tenant_id": schedule.tenant_id,
        "name": spec.name,
        "description": spec.description,
        "partition": schedule.partition,
        "trigger_kind": rule.kind.value,
        "trigger_text": rule.expression,
        "timezone": rule.timezone,
        "anchor": rule.anchor,
        "dst_gap": rule.gap.value,
        "dst_fold": rule.fold.value,
        "calendars": _calendars_to_text(rule),
        "starts_at": rule.starts_at,
        "ends_at": rule.ends_at,
        "target": text_of(spec.target),
        "target_kind": spec.target_kind,
        "queue": spec.queue,
        "task_type": spec.task_type,
        "fair_key": spec.fair_key,
        "hooks": hooks_text(spec.hooks),
        "payload": spec.payload.decode(),
        "overlap": spec.overlap.value,
        "max_concurrent": spec.max_concurrent,
        "concurrency": spec.concurrency,
        "catch_up": spec.catch_up.value,
        "misfire_grace_seconds": spec.misfire_grace_seconds,
        "jitter_seconds": spec.jitter_seconds,
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "retry": text_of(spec.retry),
        "timeout_seconds": spec.timeout_seconds,
        "labels": text_of(spec.labels),
        "enabled": spec.enabled,
        "status": schedule.status.value,
        "revision": schedule.revision,
        "cursor_at": schedule.cursor_at,
        "rule_at": schedule.rule_at,
        "next_tick_at": schedule.next_tick_at,
        "due_at": schedule.due_at,
        "last_tick_at": schedule.last_tick_at,
        "moved_tick_at": schedule.moved_tick_at,
        "fault": schedule.fault,
        "note": schedule.note,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
    }


def schedule_from_row(row: Row) -> Schedule:
    return Schedule(
        id=row["id"],
        tenant_id=row["tenant_id"],
        partition=row["partition"],
        spec=_spec_from_row(row),
        status=Status(row["status"]),
        revision=row["revision"],
        cursor_at=row["cursor_at"],
        rule_at=row["rule_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        next_tick_at=row["next_tick_at"],
        due_at=row["due_at"],
        last_tick_at=row["last_tick_at"],
        moved_tick_at=row["moved_tick_at"],
        fault=row["fault"],
        note=row["note"],
    )


def _spec_from_row(row: Row) -> Spec:
    return Spec(
        name=row["name"],
        rule=rule_from_row(row),
        target=target_from_text(row["target"]),
        hooks=hooks_from_text(row["hooks"]),
        payload=row["payload"].encode(),
        description=row["description"],
        overlap=Overlap(row["overlap"]),
        max_concurrent=row["max_concurrent"],
        catch_up=CatchUp(row["catch_up"]),
        misfire_grace_seconds=row["misfire_grace_seconds"],
        jitter_seconds=row["jitter_seconds"],
        priority=row["priority"],
        max_attempts=row["max_attempts"],
        retry=_retry_from_json(row["retry"]),
        timeout_seconds=row["timeout_seconds"],
        labels=_decode(row["labels"]),
        enabled=row["enabled"],
    )


def rule_from_row(row: Row) -> Rule:
    return _rule(
        row["trigger_kind"],
        row["trigger_text"],
        row["timezone"],
        row["anchor"],
        row["dst_gap"],
        row["dst_fold"],
        row["calendars"],
        row["starts_at"],
        row["ends_at"],
    )


@lru_cache(maxsize=4096)
def _rule(
    kind: str,
    expression: str,
    timezone: str,
    anchor: datetime | None,
    gap: str,
    fold: str,
    calendars: str | None,
    starts_at: datetime | None,
    ends_at: datetime | None,
) -> Rule:
    """Cached: many schedules share a rule, and each scan decodes the rules of all schedules that are due soon."""
    named = _calendars_from_json(calendars) if calendars else {}
    return Rule(
        kind=TriggerKind(kind),
        expression=expression,
        timezone=timezone,
        anchor=anchor,
        gap=DstGap(gap),
        fold=DstFold(fold),
        exclude=named.get("exclude", ()),
        only=named.get("only", ()),
        starts_at=starts_at,
        ends_at=ends_at,
    )


def due_from_row(row: Row) -> DueSchedule:
    return DueSchedule(
        id=row["id"],
        tenant_id=row["tenant_id"],
        partition=row["partition"],
        revision=row["revision"],
        cursor_at=row["cursor_at"],
        next_tick_at=row["next_tick_at"],
        due_at=row["due_at"],
        catch_up=CatchUp(row["catch_up"]),
        misfire_grace_seconds=row["misfire_grace_seconds"],
        jitter_seconds=row["jitter_seconds"],
        rule=rule_from_row(row),
        moved_tick_at=row["moved_tick_at"],
    )


def due_from_rows(rows: Iterable[Row]) -> tuple[list[DueSchedule], dict[UUID, str]]:
    """Decode rows. Returns the schedules, and the errors of invalid rows by id, so that one bad row does not fail the scan."""
    schedules, faults = [], {}
    for row in rows:
        try:
            schedules.append(due_from_row(row))
        except (ValueError, msgspec.DecodeError) as error:
            faults[row["id"]] = str(error)
    return schedules, faults


def audited_from_rows(rows: Iterable[Row]) -> list[AuditedSchedule]:
    """Decode the schedules of an audit. A row that cannot be decoded is a fault, which the ticker reports."""
    schedules = []
    for row in rows:
        try:
            rule = rule_from_row(row)
        except (ValueError, msgspec.DecodeError):
            continue
        names = ("id", "tenant_id", "name", "cursor_at", "rule_at", "created_at", "moved_tick_at", "jitter_seconds", "fault")
        values = {name: row[name] for name in names}
        schedules.append(AuditedSchedule(**values, status=Status(row["status"]), rule=rule))
    return schedules


def day_total_from_row(row: Row) -> DayTotal:
    reason = None if row["reason"] is None else SkipReason(row["reason"])
    return DayTotal(**{**row, "outcome": Outcome(row["outcome"]), "reason": reason})


def past_rule_from_row(row: Row) -> PastRule:
    return PastRule(schedule_id=row["schedule_id"], rule=_rule_from_json(row["rule"]), since=row["since"], until=row["until"])


def _calendars_to_text(rule: Rule) -> str | None:
    if not rule.exclude and not rule.only:
        return None
    return text_of({"exclude": rule.exclude, "only": rule.only})


class SkipColumns:
    """The skips of many schedules as columns: the parameters of tick_fire and tick_skip."""

    def __init__(self, flat: Sequence[tuple[UUID, UUID, int | None, Skip]]) -> None:
        self.columns: dict[str, list[Any]] = {
            "skip_ids": [schedule_id for schedule_id, _, _, _ in flat],
            "skip_tenants": [tenant_id for _, tenant_id, _, _ in flat],
            "skip_epochs": [epoch for _, _, epoch, _ in flat],
            "skip_firsts": [skip.first for _, _, _, skip in flat],
            "skip_lasts": [skip.last for _, _, _, skip in flat],
            "skip_counts": [skip.count for _, _, _, skip in flat],
            "skip_reasons": [skip.reason.value for _, _, _, skip in flat],
        }

    @classmethod
    def of_writes(cls, writes: Sequence[ScheduleWrite]) -> SkipColumns:
        return cls([(one.schedule.id, one.schedule.tenant_id, None, skip) for one in writes for skip in one.skips])

    @classmethod
    def of_firings(cls, firings: Sequence[Firing]) -> SkipColumns:
        return cls([(one.schedule_id, one.tenant_id, one.epoch, skip) for one in firings for skip in one.skips])

    def __bool__(self) -> bool:
        return bool(self.columns["skip_ids"])


def months_of(instants: Iterable[datetime]) -> set[datetime]:
    """The beginning of each month that contains one of these times."""
    return {at.replace(day=1, hour=0, minute=0, second=0, microsecond=0) for at in instants}


def tick_from_row(row: Row) -> Tick:
    return Tick(
        schedule_id=row["schedule_id"],
        scheduled_for=row["scheduled_for"],
        outcome=Outcome(row["outcome"]),
        reason=_reason(row),
        task_id=row["task_id"],
        fired_at=row["fired_at"],
        until=row["until"],
        count=row["count"],
        node=row["node"],
        epoch=row["epoch"],
    )


def node_from_row(row: Row) -> NodeInfo:
    return NodeInfo(
        id=row["id"],
        name=row["name"],
        roles=tuple(row["roles"].split(",")),
        version=row["version"],
        started_at=row["started_at"],
        seen_at=row["seen_at"],
        lease_seconds=row["lease_seconds"],
        lag_seconds=row["lag_seconds"],
        fired_per_second=row["fired_per_second"],
        capacity=row["capacity"],
        deliveries=row["deliveries"],
    )


def bulk_from_row(row: Row) -> BulkOperation:
    values = dict(row)
    return BulkOperation(
        **{
            **values,
            "subject": BulkSubject(values["subject"]),
            "action": BulkAction(values["action"]),
            "state": BulkState(values["state"]),
            "errors": msgspec.json.decode(values["errors"], type=tuple[BulkError, ...]),
            "page": msgspec.json.decode(values["page"], type=tuple[str, ...]),
        }
    )


def bulk_to_row(operation: BulkOperation) -> dict[str, Any]:
    names = ("id", "tenant_id", "filter", "note", "actor", "key_id", "matched", "position")
    values = {name: getattr(operation, name) for name in names}
    return {**values, "subject": operation.subject.value, "action": operation.action.value}


def bulk_progress_to_row(operation: BulkOperation, progress: BulkProgress) -> dict[str, Any]:
    return {
        "id": operation.id,
        "expected": operation.position,
        "expected_page": text_of(operation.page),
        "position": progress.position,
        "page": text_of(progress.page),
        "done": progress.done,
        "failed": progress.failed,
        "errors": text_of((*operation.errors, *progress.errors)[:MAX_ERRORS]),
        "state": progress.state.value,
    }


def pause_from_row(row: Row) -> Pause:
    return Pause(**row)


def pause_to_row(pause: Pause) -> dict[str, Any]:
    """The values of a new pause. The store sets its beginning."""
    names = ("id", "tenant_id", "queue", "note", "paused_by", "until_at")
    return {name: getattr(pause, name) for name in names}


def worker_from_row(row: Row) -> WorkerInfo:
    types = None if row["types"] is None else _names_from_json(row["types"])
    changed = {"queues": _names_from_json(row["queues"]), "types": types, "state": WorkerState(row["state"])}
    return WorkerInfo(**{**row, **changed})


def calendar_from_row(row: Row) -> Calendar:
    return _calendar(row["name"], row["revision"], row["definition"])


@lru_cache(maxsize=256)
def _calendar(name: str, revision: int, definition: str) -> Calendar:
    """Cached, so that equal rows return the same object: the timeline cache compares calendars by identity."""
    try:
        return parse_calendar(name, _decode(definition), revision=revision)
    except EverbeatError as error:
        raise StoreUnusable(f"calendar {name} cannot be read: {error}") from error


def total_from_row(row: Row) -> TickTotal:
    return TickTotal(row["schedule_id"], Outcome(row["outcome"]), _reason(row), row["count"])


def fire_result_from_rows(rows: Sequence[Row], firings: Sequence[Firing]) -> FireResult:
    """Convert the rows of tick_fire.

    The first row contains the current time. A row with a queue contains the new tasks of several schedules; any other row
    contains one schedule that was advanced, or was skipped because it is locked.
    """
    by_schedule = {firing.schedule_id: firing for firing in firings}
    fired: list[Fired] = []
    changes: list[TaskChange] = []
    queues, held_schedule_ids, locked_ids = set(), set(), set()
    for row in rows[1:]:
        queue = row["queue"]
        if row["outcome"] == "locked":
            locked_ids.add(row["id"])
            continue
        if queue is None:
            outcome = Outcome(row["outcome"]) if row["outcome"] else None
            fired.append(Fired(row["id"], outcome, _reason(row), row["fired_at"]))
            continue
        schedule_ids, state = row["schedule_ids"], row["state"]
        changes += [fired_change(by_schedule[id_], queue, row["type"], state, row["priority"]) for id_ in schedule_ids]
        if state == "held":
            held_schedule_ids.update(schedule_ids)
        else:
            queues.add(queue)
    return FireResult(rows[0]["moment"], fired, frozenset(queues), frozenset(held_schedule_ids), changes, frozenset(locked_ids))


ORIGINS = {origin.value: origin for origin in Origin}


def claimed_from_row(row: Row) -> ClaimedTask:
    return claimed_from_values(*(row[name] for name in CLAIMED_COLUMNS))


CLAIMED_COLUMNS = (
    *("id", "tenant_id", "type", "queue", "payload", "payload_ref", "attempt", "max_attempts", "fence", "lease_until"),
    *("lease_seconds", "scheduled_for", "schedule", "schedule_id", "origin", "timeout_seconds", "traceparent"),
)


def claimed_from_values(
    id_: UUID,
    tenant_id: UUID,
    type_: str,
    queue: str,
    payload: str,
    payload_ref: str | None,
    attempt: int,
    max_attempts: int,
    fence: int,
    lease_until: datetime,
    lease_seconds: float,
    scheduled_for: datetime | None,
    schedule: str | None,
    schedule_id: UUID | None,
    origin: str,
    timeout_seconds: float,
    traceparent: str | None,
) -> ClaimedTask:
    """The claimed task with these values, in the order of CLAIMED_COLUMNS: unpacking a row is faster than lookups by name."""
    claimed = ClaimedTask(
        id=id_,
        type=type_,
        queue=queue,
        payload=msgspec.Raw(payload.encode()),
        attempt=attempt,
        max_attempts=max_attempts,
        fence=fence,
        lease_until=lease_until,
        lease_seconds=lease_seconds,
        scheduled_for=scheduled_for,
        schedule=schedule,
        schedule_id=schedule_id,
        origin=ORIGINS[origin],
        timeout_seconds=timeout_seconds,
        traceparent=traceparent,
        tenant_id=tenant_id,
    )
    return claimed if payload_ref is None else with_payload_ref(claimed, payload_ref)


def task_from_row(row: Row) -> TaskRecord:
    return TaskRecord(
        **{
            **row,
            "state": TaskState(row["state"]),
            "origin": Origin(row["origin"]),
            "target": target_of(row["target"], row["queue"], row["type"]),
            "labels": _decode(row["labels"]),
            "payload": row["payload"].encode(),
            "retry": row["retry"].encode(),
            "result": _bytes(row["result"]),
            "error": _bytes(row["error"]),
            "response": _bytes(row["response"]),
            "outcome": AttemptOutcome(row["outcome"]) if row["outcome"] else None,
        }
    )


def running_from_row(row: Row) -> LeasedTask:
    return LeasedTask(**row)


def attempt_from_row(row: Row) -> Attempt:
    return Attempt(
        **{
            **row,
            "outcome": AttemptOutcome(row["outcome"]),
            "error": _bytes(row["error"]),
            "response": _bytes(row["response"]),
        }
    )


def dead_letter_from_row(row: Row) -> DeadLetter:
    return DeadLetter(
        **{
            **row,
            "origin": Origin(row["origin"]),
            "target": target_of(row["target"], row["queue"], row["type"]),
            "labels": _decode(row["labels"]),
            "payload": row["payload"].encode(),
            "retry": row["retry"].encode(),
            "error": _bytes(row["error"]),
        }
    )


def flow_starts(tenant_id: UUID | None, queues: Sequence[str], after: Sequence[Flow]) -> list[Flow]:
    """The flow of each queue after which the scan starts: the given one, or one before all flows (of the tenant)."""
    last_flows = {flow.queue: flow for flow in after}
    return [last_flows.get(queue) or Flow(queue, tenant_id or FIRST_ID, -1, "", "") for queue in dict.fromkeys(queues)]


def within_quota(steps: Sequence[ClaimStep], remaining: Mapping[UUID, int]) -> list[ClaimStep]:
    """The steps with their limits reduced to the remaining quotas of their tenants, in order of the steps."""
    left = dict(remaining)
    allowed: list[ClaimStep] = []
    for step in steps:
        if step.tenant_id in left:
            step = step._replace(limit=max(min(step.limit, left[step.tenant_id]), 0))
            left[step.tenant_id] -= step.limit
        allowed.append(step)
    return allowed


def claim_result(
    requests: Sequence[ClaimRequest],
    tasks: list[list[ClaimedTask]],
    steps: Sequence[ClaimStep],
    claimed_counts: list[int],
    remaining: Mapping[UUID, int],
    waited_seconds: Mapping[UUID, float],
) -> ClaimResult:
    left = dict(remaining)
    for step, count in zip(steps, claimed_counts, strict=True):
        if step.tenant_id in left:
            left[step.tenant_id] -= count
    full = frozenset(tenant_id for tenant_id, remaining_count in left.items() if remaining_count <= 0)
    limits = [step.limit for step in steps]
    return ClaimResult(tasks, limits, claimed_counts, full, claimed_changes(requests, tasks, waited_seconds))


def excluded_and_limit(remaining: Mapping[UUID, int], limit: int) -> tuple[list[UUID], int]:
    """The tenants that may run no more tasks, and a limit that no other tenant with a limit of running tasks can exceed."""
    excluded = [tenant_id for tenant_id, count in remaining.items() if count <= 0]
    return excluded, min([limit, *(count for count in remaining.values() if count > 0)])


def triggered_result(request: ClaimRequest, tasks: list[ClaimedTask], waited_seconds: Mapping[UUID, float]) -> ClaimResult:
    changes = claimed_changes([request], [tasks], waited_seconds)
    return ClaimResult([tasks], [len(tasks)], [len(tasks)], frozenset(), changes)


def deduplicate(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """The items without those whose key occurred before: a batch of several requests may contain duplicates."""
    found: dict[Hashable, T] = {}
    for item in items:
        found.setdefault(key(item), item)
    return list(found.values())


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


class KeyedTasks(NamedTuple):
    """The indexes of new tasks by idempotency key.

    `firsts`: the first task of each key. `unkeyed`: tasks without a key. `repeats`: for each further task of a key, the first
    one. `mismatched`: those of the further tasks with another fingerprint.
    """

    firsts: dict[tuple[UUID, str], int]
    unkeyed: list[int]
    repeats: dict[int, int]
    mismatched: set[int]


def group_by_key(tasks: Sequence[NewTask]) -> KeyedTasks:
    keyed = KeyedTasks({}, [], {}, set())
    _group(keyed, tasks, range(len(tasks)))
    return keyed


async def group_in_steps(tasks: Sequence[NewTask]) -> KeyedTasks:
    """Group a batch that may be large by key. Between two steps, other work runs on the event loop."""
    keyed = KeyedTasks({}, [], {}, set())
    for start in range(0, len(tasks), SLICE):
        if start:
            await asyncio.sleep(0)
        _group(keyed, tasks, range(start, min(start + SLICE, len(tasks))))
    return keyed


def _group(keyed: KeyedTasks, tasks: Sequence[NewTask], indexes: range) -> None:
    for index in indexes:
        task = tasks[index]
        if task.key is None:
            keyed.unkeyed.append(index)
            continue
        first = keyed.firsts.setdefault((task.tenant_id, task.key.key), index)
        if first != index:
            keyed.repeats[index] = first
            known = tasks[first].key
            if known is not None and known.fingerprint != task.key.fingerprint:
                keyed.mismatched.add(index)


def mismatched_keys(tasks: Sequence[NewTask], keyed: KeyedTasks, taken: Mapping[int, tuple[UUID, bytes]]) -> set[int]:
    """The indexes of tasks whose key was used with another fingerprint, in this batch or earlier."""
    mismatched = set(keyed.mismatched)
    for index in [*taken, *(index for index, first in keyed.repeats.items() if first in taken)]:
        key = tasks[index].key
        if key is not None and taken[keyed.repeats.get(index, index)][1] != key.fingerprint:
            mismatched.add(index)
    return mismatched


def schedule_ids_of(rows: Iterable[Row]) -> frozenset[UUID]:
    return frozenset(row["schedule_id"] for row in rows if row["schedule_id"] is not None)


def submit_result(
    tasks: Sequence[NewTask],
    changes: list[TaskChange],
    keyed: KeyedTasks,
    now: datetime,
    taken: Mapping[int, tuple[UUID, bytes]],
    mismatched: set[int],
) -> SubmitResult:
    """The result of a submit. `taken`: for keys that were used earlier, the index of the first task, and the earlier task."""
    ids = [task.id for task in tasks]
    for index, (task_id, _) in taken.items():
        ids[index] = task_id
    for index, first in keyed.repeats.items():
        ids[index] = ids[first]
    repeated = frozenset(taken) | frozenset(keyed.repeats)
    return SubmitResult(now, ids, repeated, frozenset(mismatched), changes)


MAX_LOG_BYTES = 1024 * 1024


def merge_heartbeats(heartbeats: Sequence[HeartbeatWrite]) -> list[HeartbeatWrite]:
    """Merge the heartbeats of each lease into one: the latest progress is kept, and log texts are concatenated."""
    merged: dict[LeaseRef, HeartbeatWrite] = {}
    for heartbeat in heartbeats:
        heartbeat = heartbeat._replace(message=_storable(heartbeat.message), log=_storable(heartbeat.log))
        if (earlier := merged.get(heartbeat.lease)) is not None:
            fraction = earlier.fraction if heartbeat.fraction is None else heartbeat.fraction
            message = earlier.message if heartbeat.message is None else heartbeat.message
            log = "\n".join(text for text in (earlier.log, heartbeat.log) if text) or None
            heartbeat = HeartbeatWrite(heartbeat.lease, fraction, message, log)
        merged[heartbeat.lease] = heartbeat
    return list(merged.values())


def _storable(text: str | None) -> str | None:
    """The text with NUL replaced, because a PostgreSQL text value cannot contain NUL."""
    return None if text is None else text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def truncate_log(text: str, logged_before: int) -> str | None:
    """The part of a log text that fits into the size limit of a task's log, with a final line that says so if it is truncated.

    `logged_before`: the bytes that the log has already. None: there is nothing to write.
    """
    if not text or logged_before > MAX_LOG_BYTES:
        return None
    if logged_before + len(text.encode()) <= MAX_LOG_BYTES:
        return text
    start = text.encode()[: MAX_LOG_BYTES - logged_before].decode(errors="ignore")
    return f"{start}\n… log truncated at {MAX_LOG_BYTES} bytes"


def _reason(row: Row) -> SkipReason | None:
    return SkipReason(row["reason"]) if row["reason"] else None

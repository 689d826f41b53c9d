"""Operations on dead letters: list them, replay them as new tasks, purge them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

import uuid_utils.compat

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.errors import NotFound, QuotaExceeded
from everbeat.core.submissions import task_for_replay
from everbeat.core.tasks import DeadLetter, TaskKey, TaskRecord
from everbeat.services.audit_log import AuditLogEntries, new_audit_log_entries
from everbeat.services.blobs import BlobStore
from everbeat.services.payloads import LargePayloads
from everbeat.services.publisher import ChangePublisher
from everbeat.services.tasks import TaskService
from everbeat.store.base import Store
from everbeat.store.values import DeadError, DeadFilter, Replay

MAX_REPLAYED = 100_000
# Groups are formed from this many of the newest dead letters.
MAX_GROUPED = 1000
_BATCH_SIZE = 1000
_MAX_IDS = 100
_BULK_SUBJECT = "all that match"
_VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|\d+")


class BulkReplayResult(NamedTuple):
    """The number of new tasks, the ids of the first ones, and whether matching dead letters remain."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    ids: list[UUID]
    has_more: bool


class DeadLetterGroup(NamedTuple):
    """Dead letters of the same queue and type with the same error, newest first. `id` stays the same when others are added."""

    id: str
    members: list[DeadError]

    @property
    def newest(self) -> DeadError:
        return self.members[0]

    @property
    def waiting(self) -> int:
        """How many were never replayed."""
        return sum(not one.is_replayed for one in self.members)


class DeadLetterService:
    """The operations of /v1/dead-letters."""

    def __init__(
        self, store: Store, tasks: TaskService, publisher: ChangePublisher, *, payloads: LargePayloads | None = None
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._payloads = payloads or LargePayloads(BlobStore(None))
        self._tasks = tasks

    async def get(self, tenant_id: UUID, task_id: UUID) -> DeadLetter:
        for letter in await self._store.dead_find(tenant_id, [task_id]):
            return letter
        raise NotFound(f"there is no dead letter of task {task_id}")

    async def read(self, tenant_id: UUID, task_id: UUID) -> DeadLetter:
        """Return a dead letter with its payload, even if that is in the blob store."""
        return await self._payloads.read(await self.get(tenant_id, task_id))

    async def page(
        self, tenant_id: UUID, filter_: DeadFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[DeadLetter]:
        return await self._store.dead_list(tenant_id, filter_, before=before, limit=limit)

    async def groups(self, tenant_id: UUID, filter_: DeadFilter) -> list[DeadLetterGroup]:
        """Group the newest dead letters by queue, type and error. The largest group is the first one."""
        groups: dict[tuple[str, ...], list[DeadError]] = {}
        for one in await self._store.dead_errors(tenant_id, filter_, limit=MAX_GROUPED):
            groups.setdefault(_error_key(one), []).append(one)
        found = [DeadLetterGroup(_group_id(key), members) for key, members in groups.items()]
        return sorted(found, key=lambda group: -len(group.members))

    async def replay(
        self,
        tenant_id: UUID,
        task_id: UUID,
        *,
        key: TaskKey | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> TaskRecord:
        """Create a new task from a dead letter and count the replay. If `key` was used before, return the task it created."""
        letter = await self.get(tenant_id, task_id)
        new = task_for_replay(letter, uuid_utils.compat.uuid7())._replace(key=key)
        moment = await self._store.clock(now=now)
        audit_log = new_audit_log_entries(by, AuditLogAction.DEAD_LETTER_REPLAY, task_id, tenant_id=tenant_id, task_id=new.id)
        if not await self._replay(tenant_id, [Replay(task_id, new)], moment, again=True, audit_log=audit_log, now=now):
            await self.get(tenant_id, task_id)
            # The dead letter exists, so the key was used before: `add_one` finds its task, or refuses the key.
            return (await self._tasks.add_one(new, now=now))[0]
        return await self._tasks.get(tenant_id, new.id)

    async def replay_all(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        rate_per_second: float | None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> BulkReplayResult:
        """Replay all that match and were never replayed. With `rate_per_second`, the run times of the tasks are spread.

        Batches are read newest first; within a batch, the oldest dead letter comes first.
        """
        moment = await self._store.clock(now=now)
        ids: list[UUID] = []
        before: tuple[datetime, UUID] | None = None
        count = 0
        while count < MAX_REPLAYED:
            letters = await self._store.dead_list(
                tenant_id, filter_, before=before, limit=min(_BATCH_SIZE, MAX_REPLAYED - count), only_never_replayed=True
            )
            if not letters:
                return BulkReplayResult(count, ids, False)
            before = (letters[-1].died_at, letters[-1].task_id)
            replays = []
            for index, letter in enumerate(reversed(letters), start=count):
                run_at = None if not rate_per_second else moment + timedelta(seconds=index / rate_per_second)
                replays.append(Replay(letter.task_id, task_for_replay(letter, uuid_utils.compat.uuid7(), run_at=run_at)))
            audit_log = (
                ()
                if count
                else new_audit_log_entries(
                    by, AuditLogAction.DEAD_LETTER_REPLAY, _BULK_SUBJECT, tenant_id=tenant_id, filter=_filter_detail(filter_)
                )
            )
            try:
                replayed_ids = set(await self._replay(tenant_id, replays, moment, again=False, audit_log=audit_log, now=now))
            except QuotaExceeded:
                if not count:
                    raise
                return BulkReplayResult(count, ids, True)  # the others can be replayed when the quota permits
            created = [one.task for one in replays if one.task_id in replayed_ids]
            count += len(created)
            ids += [task.id for task in created[: _MAX_IDS - len(ids)]]
        remaining = await self._store.dead_list(tenant_id, filter_, before=before, limit=1, only_never_replayed=True)
        return BulkReplayResult(count, ids, bool(remaining))

    async def _replay(
        self,
        tenant_id: UUID,
        replays: list[Replay],
        moment: datetime,
        *,
        again: bool,
        audit_log: AuditLogEntries,
        now: datetime | None,
    ) -> list[UUID]:
        tasks = await self._tasks.quotas.with_allowed_priority(tenant_id, [one.task for one in replays])
        replays = [replay._replace(task=task) for replay, task in zip(replays, tasks, strict=True)]
        async with self._tasks.quotas.reserve(tenant_id, tasks, now=now):
            replayed = await self._store.dead_replay(tenant_id, replays, again=again, audit_log=audit_log, now=now)
        self._publisher.publish(replayed.changes, now=moment)
        return replayed.task_ids

    async def purge(
        self, tenant_id: UUID, filter_: DeadFilter, *, by: Caller | None = None, now: datetime | None = None
    ) -> int:
        total = 0
        audit_log = new_audit_log_entries(
            by, AuditLogAction.DEAD_LETTER_PURGE, _BULK_SUBJECT, tenant_id=tenant_id, filter=_filter_detail(filter_)
        )
        while purged := await self._store.dead_purge(
            tenant_id, filter_, limit=_BATCH_SIZE, audit_log=() if total else audit_log, now=now
        ):
            total += purged
        return total


def _filter_detail(filter_: DeadFilter) -> dict[str, object]:
    return {name: value for name, value in filter_._asdict().items() if value is not None}


def _error_key(error: DeadError) -> tuple[str, ...]:
    """Return what the errors of a group have in common. Numbers and ids in messages differ from task to task."""
    message = _VARYING.sub("…", error.message or "")
    return error.queue, error.type, error.reason, error.error_kind or "", message


def _group_id(key: tuple[str, ...]) -> str:
    return blake2b("\0".join(key).encode("utf-8", "replace"), digest_size=8).hexdigest()

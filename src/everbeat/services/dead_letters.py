"""Dead letters: tasks whose attempts are exhausted, to look at, to replay as new tasks, to purge."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import uuid_utils.compat

from everbeat.core.errors import NotFound
from everbeat.core.submissions import task_again
from everbeat.core.tasks import DeadLetter, Task
from everbeat.services.tasks import Tasks
from everbeat.store.base import DeadFilter, Replay, Store

MOST_REPLAYED = 100_000
_PIECE = 1000
_SHOWN = 100


class Replayed(NamedTuple):
    """How many became new tasks, the first of those, and whether more are left than one call takes."""

    count: int  # type: ignore[assignment]  # it hides tuple.count, which nobody calls here
    ids: list[UUID]
    has_more: bool


class DeadLetters:
    """The room behind /v1/dead-letters."""

    def __init__(self, store: Store, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks

    async def get(self, tenant_id: UUID, task_id: UUID) -> DeadLetter:
        for letter in await self._store.dead_find(tenant_id, [task_id]):
            return letter
        raise NotFound(f"there is no dead letter of a task {task_id}")

    async def page(
        self, tenant_id: UUID, filter_: DeadFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[DeadLetter]:
        return await self._store.dead_list(tenant_id, filter_, before=before, limit=limit)

    async def replay(self, tenant_id: UUID, task_id: UUID, *, now: datetime | None = None) -> Task:
        """As a new task, as often as asked; the dead letter keeps count."""
        letter = await self.get(tenant_id, task_id)
        new = task_again(letter, uuid_utils.compat.uuid7())
        moment = await self._store.clock(now=now)
        if not await self._store.dead_replay(tenant_id, [Replay(task_id, new)], again=True, now=now):
            raise NotFound(f"there is no dead letter of a task {task_id}")
        self._tasks.tell([new], moment)
        return await self._tasks.get(tenant_id, new.id)

    async def replay_all(
        self, tenant_id: UUID, filter_: DeadFilter, *, rate_per_second: float | None, now: datetime | None = None
    ) -> Replayed:
        """All that match and were never replayed, the oldest of a piece first, spread over time if a rate is given."""
        moment = await self._store.clock(now=now)
        ids: list[UUID] = []
        before: tuple[datetime, UUID] | None = None
        count = 0
        while count < MOST_REPLAYED:
            letters = await self._store.dead_list(
                tenant_id, filter_, before=before, limit=min(_PIECE, MOST_REPLAYED - count), only_unplayed=True
            )
            if not letters:
                return Replayed(count, ids, False)
            before = (letters[-1].died_at, letters[-1].task_id)
            replays = []
            for place, letter in enumerate(reversed(letters), start=count):
                run_at = None if not rate_per_second else moment + timedelta(seconds=place / rate_per_second)
                replays.append(Replay(letter.task_id, task_again(letter, uuid_utils.compat.uuid7(), run_at=run_at)))
            done = set(await self._store.dead_replay(tenant_id, replays, again=False, now=now))
            made = [one.task for one in replays if one.task_id in done]
            self._tasks.tell(made, moment)
            count += len(made)
            ids += [task.id for task in made[: _SHOWN - len(ids)]]
        left = await self._store.dead_list(tenant_id, filter_, before=before, limit=1, only_unplayed=True)
        return Replayed(count, ids, bool(left))

    async def purge(self, tenant_id: UUID, filter_: DeadFilter, *, now: datetime | None = None) -> int:
        total = 0
        while purged := await self._store.dead_purge(tenant_id, filter_, limit=_PIECE, now=now):
            total += purged
        return total

"""Direct handoff: a submitted task is written as running, under the lease of a worker that waits in a long poll.

There is only one commit between the submit and the worker.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from everbeat.core.submissions import handoff_lease_end
from everbeat.core.tasks import ClaimedTask, NewTask, with_payload_ref
from everbeat.services.long_polls import LongPolls, WaitingPoll, WaitQueue


class DirectHandoff:
    """Assigns tasks that are about to be written to waiting polls, so that they are written as running."""

    def __init__(self, long_polls: LongPolls) -> None:
        self._long_polls = long_polls
        self._taken: dict[WaitingPoll, tuple[WaitQueue, list[NewTask]]] = {}

    def reserve(self, task: NewTask) -> NewTask:
        """Return the task with the lease of a waiting worker.

        It is unchanged if no worker waits, if its tenant has `max_running`, or if its queue is paused.
        """
        long_polls = self._long_polls
        is_possible = not long_polls.is_limited(task.tenant_id) and not long_polls.is_paused(task.tenant_id, task.queue)
        poll = self._poll_for(task) if is_possible else None
        if poll is None:
            return task
        reserved = task._replace(
            lease_owner=poll.request.worker,
            lease_seconds=poll.request.lease_seconds,
            total_seconds=self._long_polls.total_seconds,
        )
        self._taken[poll][1].append(reserved)
        return reserved

    def _poll_for(self, task: NewTask) -> WaitingPoll | None:
        for poll, (wait_queue, tasks) in self._taken.items():
            if len(tasks) < poll.request.limit and wait_queue.serves(task):
                return poll
        for wait_queue in self._long_polls.wait_queues_of(task.queue):
            if wait_queue.serves(task) and (first := wait_queue.take_first()) is not None:
                self._taken[first] = (wait_queue, [])
                return first
        return None

    async def deliver(self, written: Collection[UUID], now: datetime | None) -> None:
        """Return the written tasks to their polls, after the write or its failure. Polls without a task go to the front."""
        undeliverable: list[tuple[UUID | None, list[ClaimedTask]]] = []
        for poll, (wait_queue, tasks) in reversed(self._taken.items()):  # reversed, so that the polls keep their order
            wait_queue.reserved -= 1
            assigned = [_claimed_task(task, now) for task in tasks if task.id in written and now is not None]
            if poll.done.done():
                undeliverable += [(wait_queue.scope.tenant_id, assigned)] if assigned else []
            elif assigned:
                poll.done.set_result(assigned)
            else:
                wait_queue.put_back(poll)
                wait_queue.wake()
        for lease_tenant_id, assigned in undeliverable:
            await self._long_polls.return_tasks(lease_tenant_id, assigned)


def _claimed_task(task: NewTask, now: datetime) -> ClaimedTask:
    """Return a new task in the form in which a claim returns it."""
    claimed = ClaimedTask(
        id=task.id,
        type=task.type,
        queue=task.queue,
        payload=msgspec.Raw(task.payload),
        attempt=1,
        max_attempts=task.max_attempts,
        fence=1,
        lease_until=handoff_lease_end(task, now),
        lease_seconds=task.lease_seconds,
        scheduled_for=task.scheduled_for,
        schedule=task.schedule_name,
        schedule_id=task.schedule_id,
        origin=task.origin,
        timeout_seconds=task.timeout_seconds,
        traceparent=task.traceparent,
        tenant_id=task.tenant_id,
    )
    return with_payload_ref(claimed, task.payload_ref)

"""The evaluator: checks whose deadline has passed without a ping go down.

Every node with the role scheduler evaluates, so that a node that dies delays nothing. The write names the version of the check
that was read: of two nodes, or of a node and a ping, only the first one changes it, and each transition is written once.
"""

from __future__ import annotations

from datetime import datetime

from everbeat.core.check_states import due_step
from everbeat.core.timeline import TimelineCache
from everbeat.services.check_changes import CheckPublisher, change_of, expectation_of
from everbeat.services.loops import Periodic
from everbeat.store.base import Store


class CheckEvaluator(Periodic):
    name = "check_evaluator"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        timelines: TimelineCache,
        publisher: CheckPublisher,
        *,
        interval_seconds: float = 1.0,
        batch_size: int = 500,
    ) -> None:
        super().__init__(interval_seconds)
        self._store = store
        self._timelines = timelines
        self._publisher = publisher
        self._batch_size = batch_size

    async def run_once(self, now: datetime | None = None) -> bool:
        moment, checks = await self._store.check_due(limit=self._batch_size, now=now)
        if not checks:
            return False
        changes = [
            change_of(check, due_step(check.position, expectation_of(check, self._timelines), moment)) for check in checks
        ]
        written = await self._store.check_advance(changes, now=now)
        self._publisher.publish(change for change in changes if change.check.id in written)
        return len(checks) >= self._batch_size

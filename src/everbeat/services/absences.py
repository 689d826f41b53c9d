"""Reports ready tasks that no live worker asks for: a queue without workers, or a type whose function was renamed."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.core.targets import is_reserved_queue
from everbeat.core.workers import Absence, WorkerInfo, absence_of
from everbeat.services.events import Emit, TasksWithoutWorker, UnservedType, ignore
from everbeat.services.maintenance.singleton import SingletonLoop
from everbeat.services.ownership import Ownership
from everbeat.store.base import Store

# Limits of one iteration. What is beyond them is not counted.
_MAX_QUEUES = 500
_MAX_FLOWS_PER_QUEUE = 100
_MAX_WORKERS = 1000

_Unserved = tuple[UUID, str, str]


class AbsenceMonitor(SingletonLoop):
    """Runs on the owner of partition 0. A type counts after two iterations, so that a worker that restarts is not reported."""

    name = "absences"
    deadline_seconds = 30.0

    def __init__(self, store: Store, ownership: Ownership, *, emit: Emit = ignore, interval_seconds: float = 30) -> None:
        super().__init__(ownership, interval_seconds)
        self._store = store
        self._emit = emit
        self._previous: set[_Unserved] = set()
        self._reported: set[_Unserved] = set()

    async def run_once(self, now: datetime | None = None) -> bool:
        found = await self._find(now) if self.is_owner() else {}
        lasting = found.keys() & self._previous
        new = [UnservedType(key[0], key[1], key[2], found[key].text) for key in sorted(lasting - self._reported)]
        self._emit(TasksWithoutWorker(len(lasting), new))
        self._previous, self._reported = set(found), lasting
        return False

    async def _find(self, now: datetime | None) -> dict[_Unserved, Absence]:
        ready = await self._store.task_ready_queues(after=None, limit=_MAX_QUEUES)
        queues = sorted({one.queue for one in ready if not is_reserved_queue(one.queue)})
        if not queues:
            return {}
        flows = await self._store.task_flows(None, queues, limit=_MAX_FLOWS_PER_QUEUE)
        moment = await self._store.clock(now=now)
        workers: dict[tuple[UUID, str], list[WorkerInfo]] = {}
        absences: dict[_Unserved, Absence] = {}
        for tenant_id, queue, type_ in dict.fromkeys((flow.tenant_id, flow.queue, flow.type) for flow in flows):
            if (tenant_id, queue) not in workers:
                workers[tenant_id, queue] = await self._store.worker_list(tenant_id, queue=queue, limit=_MAX_WORKERS)
            absence = absence_of(queue, type_, workers[tenant_id, queue], moment)
            if absence is not None:
                absences[tenant_id, queue, type_] = absence
        return absences

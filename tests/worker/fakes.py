"""A server in memory with leases, fences and faults on demand. The tests of the worker runtime use it."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import msgspec

from everbeat.client.base import ApiResponse
from everbeat.client.errors import NotReachable, ServerProblem
from everbeat.client.registry import Registry, TaskDefinition
from everbeat.core.protocol import (
    ErrorInput,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseFailRequest,
    LeaseFailure,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResult,
    LeaseReleaseRequest,
    LeaseResult,
    Progress,
    TaskInput,
)
from everbeat.core.tasks import ClaimedTask, Origin


def definition(function: Callable[..., Any], type: str = "job", **options: Any) -> TaskDefinition:
    """Return a definition as the decorators would: async by its function, with a context if its first argument is ctx."""
    code = getattr(function, "__code__", None)
    first = code.co_varnames[:1] if code is not None and code.co_argcount else ()
    given: dict[str, Any] = {
        "queue": "default",
        "is_async": inspect.iscoroutinefunction(function),
        "wants_context": first == ("ctx",),
        **options,
    }
    return TaskDefinition(type=type, function=function, **given)


def registry_of(*definitions: TaskDefinition | Callable[..., Any]) -> Registry:
    made = [one if isinstance(one, TaskDefinition) else definition(one) for one in definitions]
    return Registry(tasks={one.type: one for one in made})


@dataclass(eq=False)
class FakeTask:
    type: str
    payload: bytes
    timeout_seconds: float
    max_attempts: int
    id: UUID = field(default_factory=uuid4)
    state: str = "ready"
    attempt: int = 0
    fence: int = 0
    worker: str | None = None
    lease_seconds: float = 0.0
    lease_until: float = 0.0
    cancel_requested: bool = False
    result: Any = None
    error: ErrorInput | None = None
    failure: LeaseFailure | None = None
    progress: Progress | None = None
    log: list[str] = field(default_factory=list)
    ended_fence: int | None = None


class FakeServer:
    """The part of a server that workers use. Called from the worker's event loop and from its heartbeat thread."""

    def __init__(self) -> None:
        self.tasks: dict[UUID, FakeTask] = {}
        self.ready: dict[UUID, FakeTask] = {}
        self.calls: Counter[str] = Counter()
        self.batches: dict[str, list[int]] = {}
        self.claims: list[LeaseClaimRequest] = []
        self.is_down = False
        self.latency_seconds = 0.0
        self.faults: dict[str, list[Exception]] = {}
        self.lost_replies: Counter[str] = Counter()
        self.refuse: Callable[[str, Any], str | None] | None = None
        self.lock = threading.RLock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    # Operations of users

    def submit(self, type: str = "job", payload: Any = None, *, timeout_seconds: float = 60, max_attempts: int = 3) -> FakeTask:
        task = FakeTask(type, msgspec.json.encode(payload or {}), timeout_seconds, max_attempts)
        self.submit_many([task])
        return task

    def submit_raw(self, payload: bytes) -> FakeTask:
        task = FakeTask("job", payload, 60, 3)
        self.submit_many([task])
        return task

    def submit_many(self, tasks: list[FakeTask]) -> None:
        with self.lock:
            for task in tasks:
                self.tasks[task.id] = self.ready[task.id] = task
        self._wake()

    def cancel(self, task: FakeTask) -> None:
        task.cancel_requested = True

    def steal(self, task: FakeTask) -> None:
        """Simulate that the lease has expired and another worker has claimed the task."""
        with self.lock:
            task.fence += 1
            task.worker = "other"
            task.lease_until = monotonic() + 60

    def states(self) -> Counter[str]:
        return Counter(task.state for task in self.tasks.values())

    def reap(self) -> None:
        """Make tasks with expired leases ready, as the server's reaper does."""
        now = monotonic()
        with self.lock:
            expired = [task for task in self.tasks.values() if task.state == "running" and task.lease_until < now]
            for task in expired:
                task.state = "ready"
        self.submit_many(expired)

    # Operations of workers

    def claim(self, claim: LeaseClaimRequest) -> list[ClaimedTask]:
        with self.lock:
            matching = (task for task in self.ready.values() if claim.types is None or task.type in claim.types)
            chosen = list(itertools.islice(matching, claim.max))
            for task in chosen:
                del self.ready[task.id]
                task.state, task.worker = "running", claim.worker
                task.attempt += 1
                task.fence += 1
                task.lease_seconds, task.lease_until = claim.lease_seconds, monotonic() + claim.lease_seconds
            return [claimed_tasks_of(task) for task in chosen]

    def heartbeat(self, heartbeat: LeaseHeartbeatRequest) -> list[LeaseHeartbeatResult]:
        with self.lock:
            return [self._renew(heartbeat.worker, one.id, one.fence, one.progress, one.log) for one in heartbeat.leases]

    def _renew(self, worker: str, id: UUID, fence: int, progress: Progress | None, log: str | None) -> LeaseHeartbeatResult:
        task = self.tasks.get(id)
        if task is None or task.state != "running" or task.fence != fence:
            return LeaseHeartbeatResult(id, "lost", None)
        task.progress = progress or task.progress
        if log is not None:
            task.log.append(log)
        if task.cancel_requested:
            return LeaseHeartbeatResult(id, "cancel", _until(task.lease_until - monotonic()))
        task.lease_until = monotonic() + task.lease_seconds
        return LeaseHeartbeatResult(id, "ok", _until(task.lease_seconds))

    def end(self, id: UUID, fence: int, state: str) -> tuple[FakeTask | None, LeaseResult]:
        task = self.tasks.get(id)
        if task is None or task.fence != fence or (task.state != "running" and task.ended_fence != fence):
            return None, LeaseResult(id, "stale")
        if task.state != "running":
            return None, LeaseResult(id, "ok")
        task.state, task.ended_fence = state, fence
        return task, LeaseResult(id, "ok")

    def complete(self, completion: LeaseCompleteRequest) -> list[LeaseResult]:
        with self.lock:
            results = []
            for result in completion.results:
                task, outcome = self.end(result.id, result.fence, "completed")
                if task is not None and result.result is not None:
                    task.result = msgspec.json.decode(msgspec.json.encode(result.result))
                results.append(outcome)
            return results

    def fail(self, failures: LeaseFailRequest) -> list[LeaseResult]:
        with self.lock:
            results = []
            for failure in failures.failures:
                task, outcome = self.end(failure.id, failure.fence, "failed")
                if task is not None:
                    task.error, task.failure = failure.error, failure
                results.append(outcome)
            return results

    def release(self, release: LeaseReleaseRequest) -> list[LeaseResult]:
        with self.lock:
            results = []
            for lease in release.leases:
                task, outcome = self.end(lease.id, lease.fence, "ready")
                if task is not None:
                    task.attempt -= 1
                    task.ended_fence = None
                    self.ready[task.id] = task
                results.append(outcome)
        self._wake()
        return results

    def _wake(self) -> None:
        for loop, event in list(self._waiting):
            loop.call_soon_threadsafe(event.set)

    async def wait_for_work(self, seconds: float) -> None:
        entry = (asyncio.get_running_loop(), asyncio.Event())
        self._waiting.add(entry)
        try:
            await asyncio.wait_for(entry[1].wait(), seconds)
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(entry)


class FakeTransport:
    """A client's connection to a fake server. Without `for_thread` it behaves like an in-process connection."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.is_disconnected = False
        self.threads: set[int] = set()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        raise AssertionError("the runtime does not call this")

    async def submit(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        raise AssertionError("the runtime does not submit")

    async def claim(self, claim: LeaseClaimRequest) -> list[ClaimedTask]:
        await self._before("claim", claim)
        self.server.claims.append(claim)
        tasks = self.server.claim(claim)
        give_up_at = monotonic() + claim.wait_seconds
        while not tasks and (left := give_up_at - monotonic()) > 0:
            await self.server.wait_for_work(left)
            self._check_connection()
            tasks = self.server.claim(claim)
        return self._after("claim", tasks)

    async def heartbeat(self, heartbeat: LeaseHeartbeatRequest) -> list[LeaseHeartbeatResult]:
        self.threads.add(threading.get_ident())
        await self._before("heartbeat", heartbeat, heartbeat.leases)
        return self._after("heartbeat", self.server.heartbeat(heartbeat))

    async def complete(self, completion: LeaseCompleteRequest) -> list[LeaseResult]:
        await self._before("complete", completion, completion.results)
        return self._after("complete", self.server.complete(completion))

    async def fail(self, failures: LeaseFailRequest) -> list[LeaseResult]:
        await self._before("fail", failures, failures.failures)
        return self._after("fail", self.server.fail(failures))

    async def release(self, release: LeaseReleaseRequest) -> list[LeaseResult]:
        await self._before("release", release, release.leases)
        return self._after("release", self.server.release(release))

    async def _before(self, verb: str, request: Any, items: Sequence[Any] = ()) -> None:
        server = self.server
        server.calls[verb] += 1
        server.batches.setdefault(verb, []).append(len(items))
        self._check_connection()
        if server.latency_seconds:
            await asyncio.sleep(server.latency_seconds)
        if faults := server.faults.get(verb):
            raise faults.pop(0)
        for item in items:
            if server.refuse is not None and (reason := server.refuse(verb, item)) is not None:
                raise ServerProblem(422, {"title": "Invalid input", "detail": reason})

    def _after(self, verb: str, outcome: list[Any]) -> list[Any]:
        if self.server.lost_replies[verb] > 0:
            self.server.lost_replies[verb] -= 1
            raise NotReachable("fake", "the reply was lost")
        return outcome

    def _check_connection(self) -> None:
        if self.is_disconnected or self.server.is_down:
            raise NotReachable("fake", "connection refused")


class ThreadedTransport(FakeTransport):
    """Like HTTP: the heartbeat thread gets a separate connection."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__(server)
        self.made: list[FakeTransport] = []

    def for_thread(self) -> FakeTransport:
        self.made.append(FakeTransport(self.server))
        self.made[-1].is_disconnected = self.is_disconnected
        return self.made[-1]

    def disconnect(self) -> None:
        self.is_disconnected = True
        for one in self.made:
            one.is_disconnected = True

    def reconnect(self) -> None:
        self.is_disconnected = False
        for one in self.made:
            one.is_disconnected = False


def claimed_tasks_of(task: FakeTask) -> ClaimedTask:
    return ClaimedTask(
        id=task.id,
        type=task.type,
        queue="default",
        payload=msgspec.Raw(task.payload),
        attempt=task.attempt,
        max_attempts=task.max_attempts,
        fence=task.fence,
        lease_until=_until(task.lease_seconds),
        lease_seconds=task.lease_seconds,
        scheduled_for=None,
        schedule=None,
        schedule_id=None,
        origin=Origin.SUBMIT,
        timeout_seconds=task.timeout_seconds,
        traceparent=None,
    )


def _until(seconds: float) -> datetime:
    # An hour behind: a worker that compared wall clocks would consider all leases expired.
    return datetime.now(UTC) + timedelta(seconds=seconds - 3600)

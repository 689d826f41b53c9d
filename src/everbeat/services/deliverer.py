"""The deliverer: a worker of the server that delivers the tasks of targets other than workers. It runs on dispatcher nodes.

Protocol. It claims ready tasks of the reserved queues as any worker does: under leases with fences, within the fair shares and
quotas of the tenants. A claim takes only tasks whose destination has capacity (services/destinations.py), and only as many as
there are free slots. Each task is passed to the Target of its kind, outside of any transaction, and the outcome is recorded
under the lease (services/delivery_reports.py). `DeliveryLeases` renews the leases of the deliveries that run.

Failures handled here: a destination that hangs (timeout, few slots until it has proven itself, circuit breaker); a target that
raises (the attempt fails); a node that dies between the sending and the recording (the lease expires, and the task is delivered
again with the same message id); a lost lease or a cancelled task (the delivery is stopped); a stopping node (deliveries get
some time to end; the others are stopped, and their tasks are released).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from everbeat.clock import Monotonic
from everbeat.core.deliveries import DeliveryTask
from everbeat.core.destinations import DeliveryResult, DestinationKey, NodeDeliveries, destination_key
from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import LeaseHeartbeat, LeaseHeartbeatRequest
from everbeat.core.targets import Target as TargetSpec
from everbeat.core.targets import delivery_kind, destination_of, queue_of_kind, target_from_text
from everbeat.core.tasks import ClaimedTask
from everbeat.delivery.base import DeliveryOutcome, DestinationLimits, Refused, RetryDelivery, Target
from everbeat.delivery.registry import TargetRegistry
from everbeat.services.delivery_reports import CancelledDelivery, DeliveryReports
from everbeat.services.destinations import Destinations
from everbeat.services.event_stream import EventStream
from everbeat.services.events import DeliveryEnded, DeliveryKindUnavailable, Emit, ignore
from everbeat.services.fair_dispatch import ClaimScope, FairDispatcher, FairnessDirectory
from everbeat.services.leases import LeaseService
from everbeat.services.loops import wait_for_event
from everbeat.services.publisher import ChangeEffects, ChangePublisher
from everbeat.services.tracing import TaskTracer
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest, Notice

_MAX_CLAIM = 500
_MAX_HEARTBEATS = 1000
_LEASE_SECONDS = 30.0
_REPORT_SECONDS = 2.0
# How often all parked destinations are checked. With many of them, less often: each costs some microseconds.
_PARKED_CHECK_SECONDS = 0.25
_MIN_PARKED_CHECK_SECONDS = 0.02
_PARKED_CHECK_COST_SECONDS = 0.00005


class PreparedDelivery(NamedTuple):
    """A claimed task and its target, with what the target needs to send it."""

    task: DeliveryTask
    destination: DestinationKey
    kind: str
    limits: DestinationLimits | None = None
    refusal: Refused | RetryDelivery | None = None


class Preparation(Protocol):
    """Adds what a target needs besides the task, such as the secrets of an endpoint and a callback token."""

    async def prepare(self, tasks: Sequence[tuple[ClaimedTask, TargetSpec]]) -> list[PreparedDelivery]:
        """Return the deliveries of these tasks, in their order."""

    async def endpoint_limits(self, endpoints: Sequence[tuple[UUID, str]]) -> Mapping[tuple[UUID, str], DestinationLimits]:
        """Return the limits of these endpoints, including those that do not exist."""


class PlainPreparation:
    """Adds nothing: for targets without endpoints and callbacks."""

    async def prepare(self, tasks: Sequence[tuple[ClaimedTask, TargetSpec]]) -> list[PreparedDelivery]:
        return [prepared(task, target) for task, target in tasks]

    async def endpoint_limits(self, endpoints: Sequence[tuple[UUID, str]]) -> Mapping[tuple[UUID, str], DestinationLimits]:
        return {endpoint: DestinationLimits(1) for endpoint in endpoints}


def prepared(task: ClaimedTask, target: TargetSpec) -> PreparedDelivery:
    """Return the delivery of a task to a target that needs nothing else."""
    delivery = DeliveryTask(
        id=task.id,
        tenant_id=task.tenant_id,
        target=target,
        type=task.type,
        payload=bytes(task.payload),
        attempt=task.attempt,
        max_attempts=task.max_attempts,
        fence=task.fence,
        schedule=task.schedule,
        schedule_id=task.schedule_id,
        scheduled_for=task.scheduled_for,
        origin=task.origin,
        timeout_seconds=task.timeout_seconds,
        traceparent=task.traceparent,
    )
    return PreparedDelivery(delivery, destination_key(task.tenant_id, destination_of(target)), delivery_kind(target))


class _RunningDelivery:
    __slots__ = ("asyncio_task", "is_sent", "is_started", "is_timed_out", "prepared", "stop_reason", "task")

    def __init__(self, task: ClaimedTask, prepared: PreparedDelivery) -> None:
        self.task = task
        self.prepared = prepared
        self.stop_reason: str | None = None
        self.is_started = False
        self.is_sent = False
        self.is_timed_out = False
        self.asyncio_task: asyncio.Task[None] | None = None

    def stop(self, reason: str) -> None:
        """Stop the delivery. If the destination has already answered, the outcome is recorded as usual."""
        if self.stop_reason is not None or self.is_sent or self.is_timed_out:
            return
        self.stop_reason = reason
        if self.is_started and self.asyncio_task is not None:  # a task cancelled before its first step would not clean up
            self.asyncio_task.cancel()

    def time_out(self) -> None:
        """Stop the sending at its deadline."""
        if self.stop_reason is None and self.asyncio_task is not None:
            self.is_timed_out = True
            self.asyncio_task.cancel()


class Deliverer:
    name = "deliverer"
    deadline_seconds = 60.0

    def __init__(
        self,
        store: Store,
        publisher: ChangePublisher,
        leases: LeaseService,
        reports: DeliveryReports,
        registry: TargetRegistry,
        directory: FairnessDirectory,
        *,
        worker: str,
        slots: int = 1000,
        poll_interval_seconds: float = 1.0,
        total_seconds: float = 7 * 86_400,
        preparation: Preparation | None = None,
        monotonic: Monotonic = time.monotonic,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
        tracer: TaskTracer | None = None,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._leases = leases
        self._reports = reports
        self._registry = registry
        self._directory = directory
        self._worker = worker
        self._poll_interval_seconds = poll_interval_seconds
        self._total_seconds = total_seconds
        self._preparation = preparation or PlainPreparation()
        self._monotonic = monotonic
        self._emit = emit
        self._tracer = tracer
        self._targets: dict[str, Target] = {}
        self.destinations = Destinations(slots, self._limits_of_kind, monotonic=monotonic, emit=emit, event_stream=event_stream)
        self._dispatcher: FairDispatcher | None = None
        self._running: dict[tuple[UUID, int], _RunningDelivery] = {}
        self._woken = asyncio.Event()
        self._polled_at = float("-inf")
        self._may_have_new_flows = True
        self._was_full = False
        self._freed_keys: set[str] = set()
        self._check_parked_at = float("-inf")
        self._is_stopping = False
        publisher.subscribe(self._on_changes)
        store.subscribe(self._on_notice)

    @property
    def running(self) -> int:
        return len(self._running)

    def state(self) -> str:
        """Return the state for GET /v1/cluster, as JSON."""
        return msgspec.json.encode(NodeDeliveries(self.running, self.destinations.not_closed())).decode()

    # The loop: claim, and begin to deliver

    async def run_once(self, now: datetime | None = None) -> bool:
        if self._is_stopping:
            return False
        dispatcher = self._dispatcher or self._make_dispatcher()
        self._poll(dispatcher)
        await self._read_endpoints()
        self._unpark(dispatcher)
        free = self.destinations.free_slots
        self._was_full = free <= 0
        if self._was_full or (dispatcher.planner.is_empty and not self._may_have_new_flows):
            return False
        self._may_have_new_flows = False
        if not (now is not None or await dispatcher.find()):
            return False
        request = ClaimRequest(self._worker, min(free, _MAX_CLAIM), _LEASE_SECONDS)
        dispatched = await dispatcher.dispatch([request], now=now)
        try:
            await self._begin(dispatched.tasks[0])
        finally:
            self.destinations.forget_claimed()
        if self.destinations.unknown_endpoints:
            self._check_parked_at = float("-inf")
            return True
        return bool(dispatched.tasks[0]) and dispatched.may_be_more and self.destinations.free_slots > 0

    async def wait(self) -> None:
        seconds = self._poll_interval_seconds
        if self._dispatcher is not None and self._dispatcher.planner.has_parked:
            seconds = min(seconds, max(0.01, self._check_parked_at - self._monotonic()))
        await wait_for_event(self._woken, seconds)

    async def close(self) -> None:
        """Claim no more tasks. The deliveries that run are ended by `stop`."""
        self._is_stopping = True

    async def stop(self, timeout_seconds: float) -> None:
        """Give the deliveries that run some time to end, stop the others, release their tasks, and close the targets."""
        self._is_stopping = True
        await self._wait_for(list(self._running.values()), timeout_seconds)
        stopped = list(self._running.values())
        for delivery in stopped:
            delivery.stop("stopping")
        await self._wait_for(stopped, _REPORT_SECONDS)
        await self._reports.release([one.task for one in stopped if one.stop_reason == "stopping"])
        await self._registry.close()

    async def _wait_for(self, deliveries: Sequence[_RunningDelivery], timeout_seconds: float) -> None:
        tasks = [one.asyncio_task for one in deliveries if one.asyncio_task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)

    def _make_dispatcher(self) -> FairDispatcher:
        """Make the targets of this node. Kinds whose packages or settings are missing are left to other nodes."""
        for kind in self._registry.kinds():
            try:
                self._targets[kind] = self._registry.target(kind)
            except (EverbeatError, ImportError) as error:
                self._emit(DeliveryKindUnavailable(kind, str(error)))
        queues = tuple(queue_of_kind(kind) for kind in self._targets)
        self._dispatcher = FairDispatcher(
            ClaimScope(None, queues, None),
            self._store,
            self._publisher,
            self._directory,
            self._total_seconds,
            self._monotonic,
            self.destinations,
        )
        return self._dispatcher

    def _limits_of_kind(self, kind: str) -> DestinationLimits:
        return DestinationLimits(self._targets[kind].max_concurrent)

    def _poll(self, dispatcher: FairDispatcher) -> None:
        """Scan for tasks once per poll interval, in case a notice was lost."""
        if self._monotonic() - self._polled_at >= self._poll_interval_seconds:
            self._polled_at = self._monotonic()
            self._mark_stale(dispatcher)

    def _mark_stale(self, dispatcher: FairDispatcher) -> None:
        dispatcher.mark_stale()
        self._may_have_new_flows = True

    def _unpark(self, dispatcher: FairDispatcher) -> None:
        """Schedule parked destinations again: those whose deliveries have ended and, less often, all that have capacity."""
        planner, now = dispatcher.planner, self._monotonic()
        freed_keys, self._freed_keys = self._freed_keys, set()
        planner.unpark(freed_keys)
        if not planner.has_parked or now < self._check_parked_at:
            return
        parked_keys = planner.parked_keys
        planner.unpark(self.destinations.available(parked_keys))
        next_seconds = self.destinations.next_capacity_seconds(parked_keys) or _PARKED_CHECK_SECONDS
        at_least = _MIN_PARKED_CHECK_SECONDS + len(parked_keys) * _PARKED_CHECK_COST_SECONDS
        self._check_parked_at = now + max(at_least, min(next_seconds, _PARKED_CHECK_SECONDS))

    async def _read_endpoints(self) -> None:
        if unknown := list(self.destinations.unknown_endpoints):
            for (tenant_id, name), limits in (await self._preparation.endpoint_limits(unknown)).items():
                self.destinations.set_endpoint(tenant_id, name, limits)
            self.destinations.unknown_endpoints.difference_update(unknown)

    # Deliveries

    async def _begin(self, tasks: list[ClaimedTask]) -> None:
        if not tasks:
            return
        tasks = await self._leases.fill(None, tasks)
        try:
            targets = await self._store.task_targets([task.id for task in tasks])
            found = [(task, target_from_text(targets[task.id])) for task in tasks if task.id in targets]
            prepared_deliveries = await self._preparation.prepare(found)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._reports.release(tasks)))
            raise
        for (task, _), one in zip(found, prepared_deliveries, strict=True):
            delivery = _RunningDelivery(task, one)
            self.destinations.begin(one.destination, one.kind, one.limits)
            self._running[task.id, task.fence] = delivery
            delivery.asyncio_task = asyncio.create_task(self._deliver(delivery))

    async def _deliver(self, delivery: _RunningDelivery) -> None:
        one = delivery.prepared
        delivery.is_started = True
        started, started_ns = self._monotonic(), time.time_ns()
        outcome: DeliveryOutcome | None = None
        try:
            if delivery.stop_reason is None:
                outcome = one.refusal or await self._send(delivery)
        finally:
            delivery.is_sent = True
            self.destinations.end(one.destination, _result_of(outcome))
            self._note_capacity(one.destination.name)
            name, seconds = _name_of(outcome, delivery.stop_reason), self._monotonic() - started
            self._emit(DeliveryEnded(one.kind, name, seconds, _status_of(outcome)))
            if self._tracer is not None:
                error = _error_of(outcome, delivery.stop_reason)
                self._tracer.on_delivery(delivery.task, one.kind, one.destination.name, started_ns, error)
            if outcome is None and delivery.stop_reason != "cancelled":
                self._forget(delivery)
        try:
            await self._record(delivery, outcome)
        finally:
            self._forget(delivery)

    def _note_capacity(self, fair_key: str) -> None:
        """Claim for a destination again that was parked, because one of its deliveries has ended."""
        if self._dispatcher is not None and self._dispatcher.planner.is_parked(fair_key):
            self._freed_keys.add(fair_key)
            self._woken.set()

    def _forget(self, delivery: _RunningDelivery) -> None:
        self._running.pop((delivery.task.id, delivery.task.fence), None)
        if self._was_full:
            self._woken.set()

    async def _record(self, delivery: _RunningDelivery, outcome: DeliveryOutcome | None) -> None:
        if outcome is not None:
            await self._reports.record(delivery.task, outcome)
        elif delivery.stop_reason == "cancelled":
            await self._reports.record(delivery.task, CancelledDelivery())

    async def _send(self, delivery: _RunningDelivery) -> DeliveryOutcome | None:
        """Return the outcome; None if the delivery was stopped."""
        one = delivery.prepared
        target = self._targets[one.kind]
        task = one.task
        if self._tracer is not None:
            traceparent = self._tracer.delivery_context(delivery.task).traceparent
            task = msgspec.structs.replace(task, traceparent=traceparent)
        seconds = min(target.timeout_seconds, one.task.timeout_seconds)
        timer = asyncio.get_running_loop().call_later(seconds, delivery.time_out)  # half the cost of asyncio.timeout
        try:
            return await target.deliver(task)
        except TimeoutError:
            return _timed_out(seconds)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or not (delivery.is_timed_out or delivery.stop_reason is not None):
                raise
            current.uncancel()
            return None if delivery.stop_reason is not None else _timed_out(seconds)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            return RetryDelivery(None, why, "error", blames_destination=False)
        finally:
            timer.cancel()

    # Leases

    async def renew_leases(self) -> None:
        """Renew the leases of the deliveries that run. Stop those that are lost or cancelled."""
        running = list(self._running.values())
        for start in range(0, len(running), _MAX_HEARTBEATS):
            part = running[start : start + _MAX_HEARTBEATS]
            heartbeat = LeaseHeartbeatRequest(
                worker=self._worker, leases=[LeaseHeartbeat(id=one.task.id, fence=one.task.fence) for one in part]
            )
            for delivery, result in zip(part, await self._leases.heartbeat(None, heartbeat), strict=True):
                if result.status != "ok":
                    delivery.stop("cancelled" if result.status == "cancel" else "lost")

    # Wake-ups

    def _on_changes(self, effects: ChangeEffects) -> None:
        dispatcher = self._dispatcher
        if dispatcher is None:
            return
        if not set(dispatcher.scope.queues).isdisjoint(effects.ready_queues):
            self._mark_stale(dispatcher)
            self._woken.set()
        if effects.ready_flows and dispatcher.add_flows(effects.ready_flows):
            self._woken.set()
        limited = {one for one in effects.freed_tenants if self._directory.max_running_of(one) is not None}
        if limited and dispatcher.unblock(limited):
            self._woken.set()

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.TASKS and self._dispatcher is not None:
            self._mark_stale(self._dispatcher)
            self._woken.set()


class DeliveryLeases:
    """Renews the leases of the deliveries of this node, every third of their duration."""

    name = "delivery_leases"
    deadline_seconds = _LEASE_SECONDS / 2

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self._renew = renew

    async def run_once(self, now: datetime | None = None) -> bool:
        await self._renew()
        return False

    async def wait(self) -> None:
        await asyncio.sleep(_LEASE_SECONDS / 3)

    async def close(self) -> None:
        """Do nothing: nothing runs in the background."""


def _timed_out(seconds: float) -> RetryDelivery:
    return RetryDelivery(None, f"the destination did not confirm the delivery within {seconds:g} seconds", "timeout")


def _result_of(outcome: DeliveryOutcome | None) -> DeliveryResult | None:
    """Return what an outcome says about the destination: a destination that refuses a task works."""
    if outcome is None:
        return None
    if isinstance(outcome, RetryDelivery):
        return DeliveryResult(outcome.blames_destination, outcome.hold_seconds)
    return DeliveryResult()


def _status_of(outcome: DeliveryOutcome | None) -> str:
    """Return the class of the HTTP status, such as `2xx`."""
    status = None if outcome is None or outcome.response is None else outcome.response.status
    return "" if status is None else f"{status // 100}xx"


def _error_of(outcome: DeliveryOutcome | None, stop_reason: str | None) -> str | None:
    if outcome is None:
        return f"stopped: {stop_reason}"
    return outcome.why if isinstance(outcome, RetryDelivery | Refused) else None


def _name_of(outcome: DeliveryOutcome | None, stop_reason: str | None) -> str:
    if outcome is None:
        return stop_reason or "stopped"
    return "retry" if isinstance(outcome, RetryDelivery) else type(outcome).__name__.lower()

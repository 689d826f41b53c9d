"""Every kind of alert rule opens, notifies and recovers: real clock, real loops, an HTTP receiver and an SMTP server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.alerts import AlertInput, AlertKind
from everbeat.core.brokers import Broker
from everbeat.core.endpoints import EndpointInput
from everbeat.core.incidents import IncidentState
from everbeat.core.protocol import (
    ErrorInput,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    TaskInput,
)
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask
from everbeat.engine import Engine
from everbeat.services.events import ignore
from everbeat.services.loops import Loop, LoopMonitor, LoopRunner
from everbeat.store.base import Store
from tests.delivery.receiver import Receiver
from tests.support.processes import wait_until_async
from tests.support.smtp_server import SmtpServer, run_smtp_server

KINDS = sorted(kind.value for kind in AlertKind)
DEADLINE_SECONDS = 60.0


class RealNode:
    """All loops of a node that alerts need. The ticker is started and stopped by the test."""

    def __init__(self, store: Store, mail: SmtpServer) -> None:
        options = {"host": "127.0.0.1", "port": mail.port, "tls": "none", "from": "everbeat@example.org"}
        self.engine = Engine(
            store,
            DatabaseClock(),
            Settings(
                brokers={"mail": Broker(name="mail", kind="email", options=options)},
                webhook_allow=("127.0.0.0/8",),
                late_after_seconds=0.5,
                alert_interval_seconds=0.1,
            ),
        )
        self.store = store
        self._monitor = LoopMonitor()
        self._runners: list[LoopRunner] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        engine = self.engine
        await engine.directory.run_once()
        await engine.ownership.run_once()
        for loop in (engine.ownership, engine.promoter, engine.reaper, engine.deliverer, engine.alert_evaluator):
            self.start(loop)
        try:
            yield
        finally:
            await asyncio.gather(*(runner.stop(2) for runner in self._runners))
            await engine.deliverer.stop(0.05)
            await engine.registry.close()

    def start(self, loop: Loop) -> None:
        self._runners.append(LoopRunner(loop, ignore, self._monitor))

    async def rule(self, kind: str, when: dict[str, Any], **more: Any) -> None:
        notify = [
            {"kind": "http", "endpoint": "alerts"},
            {"kind": "email", "broker": "mail", "to": ["ops@example.org", "dev@example.org"]},
        ]
        given = {"when": {"kind": kind, **when}, "notify": notify, "group_seconds": 0, **more}
        decoded = msgspec.json.decode(msgspec.json.encode(given), type=AlertInput)
        await self.engine.alerts.put(DEFAULT_TENANT, kind.replace("_", "-"), decoded)

    async def schedule(self, name: str, **more: Any) -> None:
        target = {"kind": "worker", "type": name, "queue": name}
        await self.engine.schedules.put(DEFAULT_TENANT, name, {"name": name, "target": target, **more})

    async def submit(self, queue: str) -> None:
        await self.engine.tasks.submit(DEFAULT_TENANT, TaskInput(type=queue, queue=queue))

    async def claim(self, queue: str) -> ClaimedTask | None:
        claim = LeaseClaimRequest(worker="w", queues=[queue], max=1)
        tasks = await self.engine.leases.claim(DEFAULT_TENANT, claim)
        return tasks[0] if tasks else None

    async def run(self, queue: str, *, fails: bool = False) -> None:
        """Let a worker run the next task of a queue."""
        task = await wait_until_async(lambda: self.claim(queue), DEADLINE_SECONDS, f"a task in queue {queue}")
        assert task is not None
        await (self.fail(task) if fails else self.complete(task))

    async def complete(self, task: ClaimedTask) -> None:
        results = [LeaseCompletion(id=task.id, fence=task.fence)]
        await self.engine.leases.complete(DEFAULT_TENANT, LeaseCompleteRequest(worker="w", results=results))

    async def fail(self, task: ClaimedTask) -> None:
        failures = [LeaseFailure(id=task.id, fence=task.fence, error=ErrorInput(message="it broke"), retryable=False)]
        await self.engine.leases.fail(DEFAULT_TENANT, LeaseFailRequest(worker="w", failures=failures))

    async def kinds_in(self, state: IncidentState) -> list[str]:
        found = await self.store.incident_list(DEFAULT_TENANT, states=[state], limit=100)
        return sorted(one.kind.value for one in found)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as running:
        yield running


@pytest.fixture
async def mail() -> AsyncIterator[SmtpServer]:
    async with run_smtp_server() as running:
        yield running


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_every_kind_of_rule_opens_notifies_and_recovers(store: Store, receiver: Receiver, mail: SmtpServer) -> None:
    node = RealNode(store, mail)
    endpoint = await node.engine.endpoints.put(DEFAULT_TENANT, "alerts", EndpointInput(url=receiver.url))
    async with node.running():
        slow_task = await make_violations(node)
        await wait_for(node, IncidentState.OPEN)
        await recover(node, slow_task)
        await wait_for(node, IncidentState.RESOLVED)
        expected = 2 * len(KINDS)
        await wait_until_async(lambda: len(receiver.received) >= expected and len(mail.received) >= 2 * expected, 30, "sent")
    check_http(receiver, endpoint.secret or "")
    check_mail(mail)


async def make_violations(node: RealNode) -> ClaimedTask:
    """Create the rules, and violate each. Returns the task that runs for too long."""
    moment = await node.store.clock()
    anchor = moment.isoformat()
    # The ticker is not running yet: this tick becomes late, and that one is missed.
    await node.schedule("late", every_seconds=2, anchor=anchor, overlap="allow", max_concurrent=1000)
    await node.schedule("missed", every_seconds=2, anchor=anchor, catch_up="none", overlap="allow", max_concurrent=1000)
    await node.schedule("skipped", every_seconds=1, anchor=anchor, overlap="skip")
    await node.schedule("deadline", every_seconds=1, anchor=anchor, overlap="skip")
    await node.rule("late", {"seconds": 1}, match={"schedule": "late"})
    await node.rule("missed", {}, match={"schedule": "missed"})
    await node.rule("skipped", {"in_a_row": 2, "reasons": ["overlap"]}, match={"schedule": "skipped"})
    by = (moment + timedelta(seconds=3)).astimezone(UTC)
    await node.rule("deadline", {"by": f"{by:%H:%M:%S}", "timezone": "UTC"}, match={"schedule": "deadline"})
    await node.rule("dead", {}, match={"queue": "dead"})
    await node.rule("success_rate", {"below": 0.5, "min_runs": 1}, match={"queue": "rate"})
    await node.rule("slow", {"seconds": 1}, match={"queue": "slow"})
    await node.rule("queue_age", {"seconds": 1}, match={"queue": "age"})
    await node.rule("no_worker", {"seconds": 1}, match={"queue": "nobody"})
    for queue in ("dead", "rate", "slow", "age", "nobody"):
        await node.submit(queue)
    await node.run("dead", fails=True)
    await node.run("rate", fails=True)
    slow_task = await node.claim("slow")
    assert slow_task is not None
    await wait_until_async(lambda: is_late(node), DEADLINE_SECONDS, "the tick is late")
    node.start(node.engine.ticker)
    return slow_task


async def is_late(node: RealNode) -> bool:
    found = await node.store.incident_list(DEFAULT_TENANT, alert="late", limit=1)
    return bool(found)


async def recover(node: RealNode, slow_task: ClaimedTask) -> None:
    """Set everything right. The ticks of `late` and `missed` have been in time since the ticker runs."""
    await node.complete(slow_task)
    for queue in ("dead", "rate"):
        await node.submit(queue)
        await node.run(queue)
    for queue in ("age", "nobody", "skipped", "deadline"):
        await node.run(queue)
    await node.submit("slow")
    await node.run("slow")


async def wait_for(node: RealNode, state: IncidentState) -> None:
    """Wait until there has been an incident of each kind, and if `state` is resolved, until all are."""

    async def is_reached() -> bool:
        resolved = await node.kinds_in(IncidentState.RESOLVED)
        if state is IncidentState.RESOLVED:
            return resolved == KINDS and await node.kinds_in(IncidentState.OPEN) == []
        return sorted(resolved + await node.kinds_in(IncidentState.OPEN)) == KINDS

    await wait_until_async(is_reached, DEADLINE_SECONDS, f"incidents of all kinds are {state}")


def check_http(receiver: Receiver, secret: str) -> None:
    """Each incident was reported twice, signed, in its own request."""
    reported: Counter[tuple[str, str]] = Counter()
    for one in receiver.received:
        content = f"{one.headers['webhook-id']}.{one.headers['webhook-timestamp']}.".encode() + one.body
        digest = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), content, hashlib.sha256)
        assert one.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        payload = msgspec.json.decode(one.body)
        reported[payload["kind"], payload["event"]] += payload["count"]
        assert payload["incidents"][0]["url"].startswith("http://127.0.0.1:8080/incidents/")
    assert reported == {(kind, f"incident.{event}"): 1 for kind in KINDS for event in ("opened", "resolved")}
    assert len({one.headers["webhook-id"] for one in receiver.received}) == len(receiver.received)


def check_mail(mail: SmtpServer) -> None:
    recipients = Counter((tuple(one.recipients), one.message["Subject"].partition(":")[0]) for one in mail.received)
    words, addresses = ("Alert", "Resolved"), ("ops@example.org", "dev@example.org")
    assert recipients == {((address,), word): len(KINDS) for word in words for address in addresses}
    assert len({one.message["Message-ID"] for one in mail.received}) == len(mail.received)
    assert all(one.message["Date"] and datetime.now(UTC).year for one in mail.received)

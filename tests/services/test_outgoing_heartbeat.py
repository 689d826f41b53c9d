"""The heartbeat for a service outside: sent by one node at a time, and to /fail while the cluster is not well."""

from __future__ import annotations

from uuid import UUID

import pytest

from everbeat.core.audit_findings import FindingKind
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.delivery.ping import PingFailed
from everbeat.services.events import HeartbeatSent
from everbeat.services.maintenance.finding_log import FindingSubject, new_finding
from everbeat.services.maintenance.outgoing_heartbeat import OutgoingHeartbeat, fail_url
from everbeat.store.base import Store
from tests.delivery.receiver import Receiver, response
from tests.factories import FAR_AHEAD, NOW, SteppedNode, execute_raw, minutes, seconds

SUBJECT = FindingSubject(DEFAULT_TENANT, UUID(int=9), "job")


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


def heartbeat_of(node: SteppedNode, url: str) -> OutgoingHeartbeat:
    emit = node.events.append
    return OutgoingHeartbeat(node.store, node.id, url, interval_seconds=60, audit_interval_seconds=15, emit=emit)


async def beat(node: SteppedNode, heartbeat: OutgoingHeartbeat, at: float) -> None:
    now = NOW + seconds(at)
    await node.step(now)
    await node.engine.auditor.run_once(now)
    await heartbeat.run_once(now)


async def test_a_heartbeat_is_sent_once_per_interval_while_the_cluster_is_well(node: SteppedNode) -> None:
    await node.put()
    other = SteppedNode(node.store, name="other")
    async with Receiver() as receiver:
        beats = [heartbeat_of(one, f"{receiver.url}/ping/abc") for one in (node, other)]
        for at in range(0, 180, 5):
            for one in beats:
                await beat(node, one, at)
        assert [(one.method, one.path, one.body) for one in receiver.received] == [("GET", "/hook/ping/abc", b"")] * 3
    assert node.events_of(HeartbeatSent) == [HeartbeatSent("ok", [])] * 3


async def test_a_new_cluster_sends_nothing_before_the_first_audit(node: SteppedNode) -> None:
    async with Receiver() as receiver:
        await heartbeat_of(node, receiver.url).run_once(NOW)
        assert receiver.received == []


async def test_a_cluster_that_is_not_well_reports_the_failure_with_its_reasons(node: SteppedNode) -> None:
    await node.put()
    async with Receiver() as receiver:
        heartbeat = heartbeat_of(node, f"{receiver.url}/ping/abc?create=1")
        for at in range(0, 65, 5):
            await beat(node, heartbeat, at)
        await execute_raw(node.store, "UPDATE schedules SET next_tick_at = ?, due_at = ?", FAR_AHEAD, FAR_AHEAD)
        for at in range(65, 185, 5):
            await beat(node, heartbeat, at)
        assert [(one.method, one.path) for one in receiver.received] == [
            ("GET", "/hook/ping/abc?create=1"),
            ("GET", "/hook/ping/abc?create=1"),
            ("GET", "/hook/ping/abc?create=1"),
            ("POST", "/hook/ping/abc/fail?create=1"),
        ]
        (schedule,) = await node.store.schedule_audit(after=None, limit=1)
        assert receiver.received[-1].body.startswith(f"overdue of schedule {schedule.id}: 2026-03-02T12:02:00".encode())


async def test_an_auditor_that_does_not_run_is_a_failure(node: SteppedNode) -> None:
    await node.engine.auditor.run_once(NOW)
    heartbeat = heartbeat_of(node, "http://localhost")
    assert await heartbeat.problems(NOW + seconds(60)) == []
    assert await heartbeat.problems(NOW + seconds(90)) == ["the auditor has not run since 2026-03-02T12:00:00.000000Z"]


async def test_a_missing_tick_is_reported_for_ten_minutes(node: SteppedNode) -> None:
    await node.engine.auditor.run_once(NOW)
    await node.store.finding_record([new_finding(FindingKind.MISSING, NOW - minutes(11), NOW - seconds(580), SUBJECT)])
    heartbeat = heartbeat_of(node, "http://localhost")
    assert len(await heartbeat.problems(NOW + seconds(20)) or ()) == 1
    assert await heartbeat.problems(NOW + seconds(21)) == []


async def test_a_service_that_does_not_accept_the_heartbeat_is_an_error(node: SteppedNode) -> None:
    async with Receiver(response(500)) as receiver:
        await node.engine.auditor.run_once(NOW)
        await heartbeat_of(node, receiver.url).run_once(NOW)
    assert node.events_of(HeartbeatSent) == [HeartbeatSent("error", ["status 500"])]

    async def refused(_url: str, _body: str | None) -> None:
        raise PingFailed("ClientConnectorError")

    heartbeat = OutgoingHeartbeat(
        node.store, node.id, "http://x", interval_seconds=1, audit_interval_seconds=15, send=refused, emit=node.events.append
    )
    await heartbeat.run_once(NOW + seconds(61))
    assert node.events_of(HeartbeatSent)[-1] == HeartbeatSent("error", ["ClientConnectorError"])


@pytest.mark.parametrize(
    ("url", "failed"),
    [
        ("https://hc-ping.com/abc", "https://hc-ping.com/abc/fail"),
        ("https://hc-ping.com/abc/", "https://hc-ping.com/abc/fail"),
        ("https://hc.example/ping/key/slug?create=1", "https://hc.example/ping/key/slug/fail?create=1"),
    ],
)
def test_a_failure_has_its_own_path(url: str, failed: str) -> None:
    assert fail_url(url) == failed

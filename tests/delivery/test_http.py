"""The http target against a real server that answers as badly as servers do."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from standardwebhooks import Webhook

from everbeat.core.deliveries import DeliveryTask
from everbeat.core.targets import HttpTarget
from everbeat.core.tasks import Origin
from everbeat.core.webhook_addresses import PUBLIC_ONLY, WebhookRules, parse_webhook_allow
from everbeat.core.webhooks import EndpointRequest, secret_text
from everbeat.delivery.base import Accepted, Delivered, HttpOptions, Refused, RetryDelivery, SettingMissing
from everbeat.delivery.http import MAX_RESPONSE_BYTES, GuardedResolver, HttpDelivery
from tests.delivery.receiver import Received, Receiver, response
from tests.factories import NOW
from tests.support.certificates import make_certificate

LOOPBACK = parse_webhook_allow(["127.0.0.0/8"])
SECRET, OLD_SECRET = secret_text(b"n" * 32), secret_text(b"o" * 32)


@pytest.fixture
async def target() -> AsyncIterator[HttpDelivery]:
    made = HttpDelivery(HttpOptions(LOOPBACK))
    yield made
    await made.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


def task(spec: HttpTarget, **more: Any) -> DeliveryTask:
    fields: dict[str, Any] = {
        "id": UUID(int=5),
        "tenant_id": UUID(int=1),
        "target": spec,
        "type": "nightly",
        "payload": b'{"x":1}',
        "attempt": 2,
        "max_attempts": 3,
        "fence": 7,
        "schedule": "nightly",
        "schedule_id": UUID(int=9),
        "scheduled_for": NOW,
        "origin": Origin.TICK,
        "timeout_seconds": 30,
    }
    return DeliveryTask(**{**fields, **more})


async def test_a_request_carries_the_payload_and_says_what_it_is_about(target: HttpDelivery, receiver: Receiver) -> None:
    outcome = await target.deliver(task(HttpTarget(url=receiver.url, headers={"X-Team": "a"})))
    assert isinstance(outcome, Delivered)
    (received,) = receiver.received
    assert (received.method, received.path, received.body) == ("POST", "/hook", b'{"x":1}')
    headers = received.headers
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("everbeat/")
    assert headers["accept-encoding"] == "identity"
    assert headers["x-team"] == "a"
    assert headers["webhook-id"] == headers["everbeat-task"] == str(UUID(int=5))
    assert (headers["everbeat-attempt"], headers["everbeat-fence"]) == ("2", "7")
    assert headers["everbeat-schedule"] == "nightly"
    assert headers["everbeat-scheduled-for"] == "2026-03-02T12:00:00.000000Z"
    assert abs(int(headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()) < 5
    assert "webhook-signature" not in headers
    assert "everbeat-callback-url" not in headers


async def test_the_requests_of_an_endpoint_are_signed_with_all_its_secrets(target: HttpDelivery, receiver: Receiver) -> None:
    endpoint = EndpointRequest(
        url=receiver.url, method="PUT", headers={"Authorization": "Bearer x"}, secrets=(SECRET, OLD_SECRET)
    )
    await target.deliver(task(HttpTarget(endpoint="billing"), endpoint=endpoint))
    (received,) = receiver.received
    assert (received.method, received.headers["authorization"]) == ("PUT", "Bearer x")
    for secret in (SECRET, OLD_SECRET):
        assert Webhook(secret).verify(received.body, received.headers) == {"x": 1}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_any_method_is_sent_and_only_get_has_no_body(target: HttpDelivery, receiver: Receiver, method: Any) -> None:
    await target.deliver(task(HttpTarget(url=receiver.url, method=method)))
    (received,) = receiver.received
    assert (received.method, received.body) == (method, b"" if method == "GET" else b'{"x":1}')


async def test_status_timing_size_and_the_beginning_of_the_body_are_kept(target: HttpDelivery, receiver: Receiver) -> None:
    receiver.respond = response(201, b"\x00" + b"a" * 6000)
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, Delivered)
    kept = outcome.response
    assert kept is not None
    assert (kept.status, kept.size, kept.body) == (201, 6001, "\N{REPLACEMENT CHARACTER}" + "a" * 4095)
    assert 0 < kept.duration_ms < 10_000


async def test_a_json_response_is_the_result_of_the_task(target: HttpDelivery, receiver: Receiver) -> None:
    receiver.respond = response(200, b'{"sum": 3}', Content_Type="application/json; charset=utf-8")
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, Delivered)
    assert outcome.result == {"sum": 3}
    receiver.respond = response(200, b"{", Content_Type="application/json")
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, Delivered)
    assert outcome.result is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422])
async def test_client_errors_are_not_retried(target: HttpDelivery, receiver: Receiver, status: int) -> None:
    receiver.respond = response(status)
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, Refused)
    assert (outcome.kind, outcome.pauses_schedule) == (f"status-{status}", False)
    assert outcome.response is not None
    assert outcome.response.status == status


@pytest.mark.parametrize(
    ("status", "blames"), [(408, False), (409, False), (425, False), (429, False), (500, True), (503, True)]
)
async def test_these_statuses_are_retried(target: HttpDelivery, receiver: Receiver, status: int, blames: bool) -> None:
    receiver.respond = response(status)
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, RetryDelivery)
    assert (outcome.after, outcome.kind, outcome.blames_destination) == (None, f"status-{status}", blames)
    assert outcome.hold_seconds == (1.0 if status == 429 else 0.0)


@pytest.mark.parametrize("value", ["7", "date"])
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_decides_when_the_next_attempt_is(receiver: Receiver, status: int, value: str) -> None:
    target = HttpDelivery(HttpOptions(LOOPBACK, now=NOW.timestamp))
    receiver.respond = response(status, Retry_After="Mon, 02 Mar 2026 12:00:07 GMT" if value == "date" else value)
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, RetryDelivery)
    assert (outcome.after, outcome.hold_seconds) == (7, 7)
    await target.close()


async def test_gone_is_refused_and_pauses_the_schedule(target: HttpDelivery, receiver: Receiver) -> None:
    receiver.respond = response(410)
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, Refused)
    assert outcome.pauses_schedule
    assert isinstance(await target.deliver(task(HttpTarget(url=receiver.url, retry_on="410"))), RetryDelivery)
    assert isinstance(await target.deliver(task(HttpTarget(url=receiver.url, success="410"))), Delivered)


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest/meta-data/", "/again", "http://127.0.0.1:1/"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(target: HttpDelivery, receiver: Receiver, status: int, location: str) -> None:
    receiver.respond = response(status, Location=location)
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, Refused)
    assert "redirects are not followed" in outcome.why
    assert len(receiver.received) == 1


async def test_202_leaves_the_task_running_only_in_callback_mode(target: HttpDelivery, receiver: Receiver) -> None:
    receiver.respond = response(202)
    callback = {"callback_url": "https://eb.example/v1/callbacks/5", "callback_token": "secret"}
    outcome = await target.deliver(task(HttpTarget(url=receiver.url, mode="callback"), **callback))
    assert isinstance(outcome, Accepted)
    assert isinstance(await target.deliver(task(HttpTarget(url=receiver.url), **callback)), Delivered)
    first, second = receiver.received
    assert first.headers["everbeat-callback-url"] == callback["callback_url"]
    assert first.headers["everbeat-callback-token"] == "secret"
    assert "everbeat-callback-token" not in second.headers


async def endless(_received: Received, writer: asyncio.StreamWriter) -> None:
    """Send a body of 10 GB, until the connection is closed."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
    for _ in range(10_000):
        writer.write(b"x" * 1_000_000)
        await writer.drain()


async def test_a_huge_response_is_read_up_to_the_limit(target: HttpDelivery, receiver: Receiver) -> None:
    receiver.respond = endless
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, Delivered)
    assert outcome.response is not None
    assert (outcome.response.size, outcome.response.detail) == (None, {"truncated": True})
    assert len(outcome.response.body or "") == 4096
    receiver.respond = response(200, b"y" * MAX_RESPONSE_BYTES)
    assert isinstance(await target.deliver(task(HttpTarget(url=receiver.url))), Delivered)
    assert receiver.connections == 2  # the first connection is not used again


async def test_a_compressed_response_is_not_decompressed(target: HttpDelivery, receiver: Receiver) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    receiver.respond = response(200, bomb, Content_Encoding="gzip", Content_Type="application/json")
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, Delivered)
    assert outcome.response is not None
    assert (outcome.response.size, outcome.result) == (len(bomb), None)


async def trickle(_received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    while not writer.transport.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.01)


async def hang(_received: Received, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("respond", [trickle, hang])
async def test_the_total_timeout_also_ends_slow_responses(target: HttpDelivery, receiver: Receiver, respond: Any) -> None:
    receiver.respond = respond
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await target.deliver(task(HttpTarget(url=receiver.url)))
    receiver.respond = response()
    assert isinstance(await target.deliver(task(HttpTarget(url=receiver.url))), Delivered)


async def reset(_received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
    await writer.drain()
    writer.transport.abort()


async def close_without_answer(_received: Received, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def garbage(_received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    await writer.drain()
    writer.close()


async def huge_header(_received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n")


@pytest.mark.parametrize("respond", [reset, close_without_answer, garbage, huge_header])
async def test_a_broken_response_is_retried(target: HttpDelivery, receiver: Receiver, respond: Any) -> None:
    receiver.respond = respond
    outcome = await target.deliver(task(HttpTarget(url=receiver.url)))
    assert isinstance(outcome, RetryDelivery)
    assert (outcome.kind, outcome.blames_destination) == ("connection", True)


async def test_a_refused_connection_is_retried(target: HttpDelivery, receiver: Receiver) -> None:
    outcome = await target.deliver(task(HttpTarget(url="http://127.0.0.1:1/")))
    assert isinstance(outcome, Refused | RetryDelivery)
    async with Receiver() as gone:
        url = gone.url
    outcome = await target.deliver(task(HttpTarget(url=url)))
    assert isinstance(outcome, RetryDelivery)
    assert outcome.kind == "connection"


# Addresses


class ScriptedResolver(GuardedResolver):
    """Looks names up in a table. A name with several answers gets the next one with each lookup."""

    def __init__(self, rules: WebhookRules, **names: list[list[str]]) -> None:
        super().__init__(rules)
        self.names = names
        self.looked_up: list[str] = []

    async def look_up(self, host: str, port: int) -> list[str]:
        self.looked_up.append(host)
        answers = self.names[host.partition(".")[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]


PRIVATE_ADDRESSES = [
    "127.0.0.1",
    "10.0.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
    "fe80::1",
    "fd00::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PRIVATE_ADDRESSES)
async def test_a_name_with_a_private_address_is_refused_at_the_connection(address: str) -> None:
    target = HttpDelivery(HttpOptions(PUBLIC_ONLY), ScriptedResolver(PUBLIC_ONLY, hooks=[[address]]))
    outcome = await target.deliver(task(HttpTarget(url="http://hooks.example/")))
    assert isinstance(outcome, Refused)
    assert (outcome.kind, address in outcome.why) == ("address-not-allowed", False)
    await target.close()


async def test_a_name_whose_address_changes_after_its_registration_is_refused(receiver: Receiver) -> None:
    """The name is public when it is registered, and when it is judged; then it points to this machine."""
    resolver = ScriptedResolver(PUBLIC_ONLY, hooks=[["93.184.215.14"], ["127.0.0.1"]])
    assert await resolver.resolve("hooks.example", receiver.port)
    target = HttpDelivery(HttpOptions(PUBLIC_ONLY), resolver)
    outcome = await target.deliver(task(HttpTarget(url=f"http://hooks.example:{receiver.port}/")))
    assert isinstance(outcome, Refused)
    assert resolver.looked_up == ["hooks.example", "hooks.example"]
    assert receiver.connections == 0
    await target.close()


async def test_the_connection_goes_to_the_address_that_was_judged(receiver: Receiver) -> None:
    resolver = ScriptedResolver(LOOPBACK, hooks=[["10.0.0.1", "127.0.0.1"]])
    target = HttpDelivery(HttpOptions(LOOPBACK), resolver)
    outcome = await target.deliver(task(HttpTarget(url=f"http://hooks.example:{receiver.port}/")))
    assert isinstance(outcome, Delivered)
    assert resolver.looked_up == ["hooks.example"]
    await target.close()


async def test_a_trusted_name_may_have_any_address(receiver: Receiver) -> None:
    rules = parse_webhook_allow(["hooks.example"])
    target = HttpDelivery(HttpOptions(rules), ScriptedResolver(rules, hooks=[["127.0.0.1"]], other=[["127.0.0.1"]]))
    assert isinstance(await target.deliver(task(HttpTarget(url=f"http://hooks.example:{receiver.port}/"))), Delivered)
    assert isinstance(await target.deliver(task(HttpTarget(url=f"http://other.example:{receiver.port}/"))), Refused)
    await target.close()


async def test_a_stored_url_with_a_private_address_is_refused_before_each_delivery(receiver: Receiver) -> None:
    target = HttpDelivery(HttpOptions(PUBLIC_ONLY))
    for url in (receiver.url, f"http://localhost:{receiver.port}/", f"http://2130706433:{receiver.port}/"):
        assert isinstance(await target.deliver(task(HttpTarget(url=url))), Refused)
    assert receiver.connections == 0
    await target.close()


async def test_a_name_that_cannot_be_resolved_is_retried(target: HttpDelivery) -> None:
    outcome = await target.deliver(task(HttpTarget(url="http://no-such-name.invalid/")))
    assert isinstance(outcome, RetryDelivery)
    assert outcome.kind == "connection"


# TLS


async def test_certificates_are_verified_and_the_operator_can_add_an_authority(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    async with Receiver(certificate=certificate, key=key) as receiver:
        plain = HttpDelivery(HttpOptions(LOOPBACK))
        outcome = await plain.deliver(task(HttpTarget(url=receiver.url)))
        assert isinstance(outcome, RetryDelivery)
        assert outcome.kind == "tls"
        await plain.close()
        trusting = HttpDelivery(HttpOptions(LOOPBACK, ca_file=str(certificate)))
        assert isinstance(await trusting.deliver(task(HttpTarget(url=receiver.url))), Delivered)
        await trusting.close()


async def test_a_client_certificate_is_presented(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    async with Receiver(certificate=certificate, key=key, client_authority=certificate) as receiver:
        options = HttpOptions(LOOPBACK, ca_file=str(certificate))
        anonymous = HttpDelivery(options)
        assert isinstance(await anonymous.deliver(task(HttpTarget(url=receiver.url))), RetryDelivery)
        await anonymous.close()
        known = HttpDelivery(options._replace(client_certificate=str(certificate), client_key=str(key)))
        assert isinstance(await known.deliver(task(HttpTarget(url=receiver.url))), Delivered)
        await known.close()


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(SettingMissing, match="cannot be read"):
        HttpDelivery(HttpOptions(ca_file=str(tmp_path / "ca.pem")))

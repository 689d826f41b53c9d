"""The email target, against a real SMTP server."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everbeat.core.brokers import Broker
from everbeat.core.errors import FieldError
from everbeat.core.message_targets import EmailTarget, is_address
from everbeat.core.targets import TargetRules, target_errors
from everbeat.delivery.base import Delivered, DeliveryOutcome, Refused, RetryDelivery, SettingMissing
from tests.delivery.messages import broker_of, make_task, target_of
from tests.support.certificates import make_certificate
from tests.support.listeners import stop_listening
from tests.support.smtp_server import SmtpServer, run_smtp_server

OPS = EmailTarget(to=["ops@example.org"], broker="main")


def server_context(folder: Path) -> tuple[ssl.SSLContext, Path]:
    certificate, key = make_certificate(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate


@pytest.fixture
async def server() -> AsyncIterator[SmtpServer]:
    async with run_smtp_server() as running:
        yield running


def broker_at(port: int, **more: Any) -> Broker:
    return broker_of("email", **{"host": "127.0.0.1", "port": port, "tls": "none", "from": "everbeat@example.org", **more})


async def deliver(broker: Broker, target: EmailTarget = OPS, **fields: Any) -> DeliveryOutcome:
    sender = target_of(broker)
    try:
        return await sender.deliver(make_task(target, **fields))
    finally:
        await sender.close()


async def test_a_message_is_sent_to_all_recipients(server: SmtpServer) -> None:
    target = EmailTarget(to=["ops@example.org", "dev+night@example.org"], broker="main")
    payload = json.dumps({"title": "Late: nightly – ü", "text": "First line\n.\n..a dot\nGrüße"}).encode()
    task = make_task(target, payload=payload)
    sender = target_of(broker_at(server.port))
    outcome = await sender.deliver(task)
    assert isinstance(outcome, Delivered)
    assert outcome.response is not None
    assert outcome.response.message_id == f"<{task.id}@example.org>"
    assert type(outcome.response.message_id) is str  # the response is stored as JSON
    (mail,) = server.received
    assert (mail.sender, mail.recipients) == ("everbeat@example.org", target.to)
    assert mail.message["Subject"] == "Late: nightly – ü"
    assert mail.message["Message-ID"] == outcome.response.message_id
    assert (mail.message["Auto-Submitted"], mail.message["X-Everbeat-Task"]) == ("auto-generated", str(task.id))
    assert mail.message.get_content().replace("\r\n", "\n") == "First line\n.\n..a dot\nGrüße\n"
    assert all(len(line) <= 998 for line in mail.raw.split(b"\r\n"))
    await sender.close()


async def test_the_payload_of_another_task_is_shown_as_json(server: SmtpServer) -> None:
    await deliver(broker_at(server.port), payload=b'{"number":7}')
    (mail,) = server.received
    assert mail.message["Subject"] == "report of nightly"
    assert json.loads(mail.message.get_content()) == {"number": 7}


@pytest.mark.parametrize("letter", ["a", "ü", "漢"])
async def test_a_long_title_arrives_as_it_is(server: SmtpServer, letter: str) -> None:
    title = " ".join(letter * 9 for _ in range(15))
    await deliver(broker_at(server.port), payload=json.dumps({"title": title}).encode())
    (mail,) = server.received
    assert mail.message["Subject"] == title


@pytest.mark.parametrize(
    "title",
    ["a\r\nBcc: evil@example.org", "a\nBcc: evil@example.org", "a\x85Bcc: evil@example.org", "a\u2028Bcc: x", "\x00\x1b[2J"],
)
async def test_a_title_cannot_add_a_header(server: SmtpServer, title: str) -> None:
    payload = json.dumps({"title": title, "text": "t\r\n.\r\nMAIL FROM:<evil@example.org>\x00"}).encode()
    assert isinstance(await deliver(broker_at(server.port), payload=payload, type="x\r\nBcc: evil@example.org"), Delivered)
    (mail,) = server.received
    assert "Bcc" not in mail.message
    assert mail.recipients == ["ops@example.org"]
    assert mail.message["X-Everbeat-Type"] is None
    assert "MAIL FROM:<evil@example.org>" in mail.message.get_content()


@pytest.mark.parametrize(
    "address",
    [
        *(
            "ops@example.org\r\nBcc: x@example.org",
            "ops@example.org\n",
            "a@b@c",
            "ops",
            "@example.org",
            "ops@",
            "a b@example.org",
        ),
        *(
            "<ops@example.org>",
            "Ops <ops@example.org>",
            "ops@example.org,dev@example.org",
            '"a b"@example.org',
            "ö@example.org",
        ),
        *("ops@exa_mple.org", "ops@-example.org", ".ops@example.org", "o..ps@example.org", "a" * 65 + "@example.org"),
        "a@" + "b." * 130 + "org",
    ],
)
def test_a_wrong_address_is_refused(address: str) -> None:
    assert not is_address(address)
    errors = target_errors(EmailTarget(to=["ops@example.org", address], broker="mail"), TargetRules(brokers={"mail": "email"}))
    assert [error.field for error in errors] == ["target.to[1]"]


def test_a_subject_with_a_line_break_is_refused() -> None:
    target = EmailTarget(to=["ops@example.org"], broker="mail", subject="a\r\nBcc: x@example.org")
    message = "must not contain line breaks and control characters"
    assert target_errors(target, TargetRules(brokers={"mail": "email"})) == [FieldError("target.subject", message)]


async def test_a_recipient_that_is_refused_for_good_ends_the_delivery_and_nobody_gets_the_message(server: SmtpServer) -> None:
    server.refuse = lambda address: "550 no such user" if address.startswith("dev") else None
    target = EmailTarget(to=["ops@example.org", "dev@example.org"], broker="main")
    outcome = await deliver(broker_at(server.port), target)
    assert isinstance(outcome, Refused)
    assert "dev@example.org: 550 no such user" in outcome.why
    assert server.received == []


async def test_a_recipient_that_is_refused_for_now_is_tried_again(server: SmtpServer) -> None:
    server.refuse = lambda _address: "451 greylisted"
    outcome = await deliver(broker_at(server.port))
    assert isinstance(outcome, RetryDelivery)
    assert (outcome.kind, outcome.blames_destination) == ("recipients", False)


@pytest.mark.parametrize(("reply", "expected"), [("452 disk full", RetryDelivery), ("554 spam", Refused)])
async def test_a_refused_message_is_judged_by_its_status(server: SmtpServer, reply: str, expected: type) -> None:
    server.data_reply = reply
    outcome = await deliver(broker_at(server.port))
    assert isinstance(outcome, RetryDelivery | Refused)
    assert (type(outcome), reply in outcome.why) == (expected, True)


async def test_it_logs_in_over_starttls(tmp_path: Path) -> None:
    context, certificate = server_context(tmp_path)
    async with run_smtp_server(starttls=context, with_login=True) as server:
        options = {"tls": "starttls", "ca_file": str(certificate), "username": "everbeat"}
        assert isinstance(await deliver(broker_at(server.port, **options, password="correct")), Delivered)
        wrong = await deliver(broker_at(server.port, **options, password="confidential"))
        assert isinstance(wrong, RetryDelivery)
        assert (wrong.kind, wrong.blames_destination, "confidential" in wrong.why) == ("login", False, False)
        assert server.logins[0] == ("everbeat", "correct")
        unknown = await deliver(broker_at(server.port, tls="starttls"))
        assert isinstance(unknown, RetryDelivery)
        assert "certificate verify failed" in unknown.why
        assert len(server.received) == 1


async def test_it_sends_over_tls(tmp_path: Path) -> None:
    context, certificate = server_context(tmp_path)
    async with run_smtp_server(tls=context) as server:
        assert isinstance(await deliver(broker_at(server.port, tls="tls", ca_file=str(certificate))), Delivered)
        assert len(server.received) == 1


async def test_a_server_without_starttls_gets_nothing(server: SmtpServer) -> None:
    outcome = await deliver(broker_at(server.port, tls="starttls", username="a", password="b"))
    assert isinstance(outcome, RetryDelivery)
    assert (outcome.kind, server.logins, server.received) == ("login", [], [])


async def test_a_server_that_is_down_is_blamed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        outcome = await deliver(broker_at(taken.getsockname()[1]))
    assert isinstance(outcome, RetryDelivery)
    assert (outcome.kind, outcome.blames_destination) == ("connection", True)


async def test_a_cancelled_delivery_ends_its_thread() -> None:
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _reader, writer: writers.append(writer), "127.0.0.1", 0)
    sender: Any = target_of(broker_at(silent.sockets[0].getsockname()[1]))
    delivery = asyncio.create_task(sender.deliver(make_task(OPS)))
    await asyncio.sleep(0)
    deadline = time.monotonic() + 10
    while not sender._threads._threads and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery
    await stop_listening(silent)
    for writer in writers:
        writer.transport.abort()
    threads = list(sender._threads._threads)
    await sender.close()
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": None}, "host is required"),
        ({"from": None}, "from is required"),
        ({"from": "Everbeat <a@example.org>"}, "from must be an e-mail address"),
        ({"tls": "yes"}, "tls must be one of"),
        ({"port": 0}, "port must be from 1 to 65535"),
        ({"username": "a"}, "username and password require each other"),
        ({"username": "a", "password": "b"}, "a password is not sent without TLS"),
        ({"ca_file": "/nowhere.pem"}, "ca_file cannot be read"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    broker = broker_at(25)
    merged = {name: value for name, value in {**broker.options, **options}.items() if value is not None}
    with pytest.raises(SettingMissing, match=message):
        target_of(broker_of("email", **merged))

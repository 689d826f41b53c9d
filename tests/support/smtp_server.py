"""A real SMTP server for tests, aiosmtpd. It keeps the messages that it accepts."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any, NamedTuple

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.listeners import stop_listening


class Mail(NamedTuple):
    sender: str
    recipients: list[str]
    message: EmailMessage
    raw: bytes


class SmtpServer:
    """`refuse`: the reply to a recipient that is not accepted. `data_reply`: the reply if no message is accepted."""

    def __init__(self) -> None:
        self.received: list[Mail] = []
        self.refuse: Callable[[str], str | None] = lambda _address: None
        self.data_reply: str | None = None
        self.logins: list[tuple[str, str]] = []
        self.port = 0

    async def handle_RCPT(self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]) -> str:
        if reply := self.refuse(address):
            return reply
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        if self.data_reply is not None:
            return self.data_reply
        raw = envelope.original_content
        assert raw is not None
        parsed: Any = message_from_bytes(raw, policy=default)
        self.received.append(Mail(str(envelope.mail_from), list(envelope.rcpt_tos), parsed, raw))
        return "250 queued as 17"

    def authenticate(self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"correct", handled=False)


@contextlib.asynccontextmanager
async def run_smtp_server(
    *, starttls: ssl.SSLContext | None = None, tls: ssl.SSLContext | None = None, with_login: bool = False
) -> AsyncIterator[SmtpServer]:
    server = SmtpServer()
    options: dict[str, Any] = {"tls_context": starttls, "require_starttls": starttls is not None}
    if with_login:
        options |= {"authenticator": server.authenticate, "auth_required": True}
    loop = asyncio.get_running_loop()
    connections: list[SMTP] = []

    def connect() -> SMTP:
        connections.append(SMTP(server, loop=loop, **options))
        return connections[-1]

    listening = await loop.create_server(connect, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        await stop_listening(listening)
        for connection in connections:
            if isinstance(connection.transport, asyncio.Transport):
                connection.transport.abort()
        await asyncio.sleep(0)

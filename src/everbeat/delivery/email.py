"""The email target: sends a message over SMTP. The connection is a `[brokers.NAME]` table with the kind email.

The client is smtplib of the standard library, in threads of its own, because messages are few and it is maintained with Python.
Each step has a timeout, and a delivery that is cancelled closes its connection, so that the thread ends as well. A connection
is used for one message.

The server confirms a message with its reply to the data. A message that is sent again has the same Message-ID, by which mail
systems may remove the duplicate. Recipients and subjects are validated when a target is registered, and written with
email.message, which refuses line breaks in headers: a value cannot add a header.
"""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryTask, message_headers
from everbeat.core.message_targets import EmailTarget, has_line_control, is_address
from everbeat.delivery.base import Refused, RetryDelivery, SettingMissing, Target, TargetContext, option
from everbeat.delivery.brokers import BrokerSender, Confirmation, misconfigured, refused, unavailable
from everbeat.delivery.messages import message_text

CONNECT_SECONDS = 10.0
STEP_SECONDS = 15.0
MAX_CONCURRENT = 8
_TLS_MODES = ("starttls", "tls", "none")
_DEFAULT_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class EmailSender(BrokerSender):
    kind = "email"
    max_concurrent = MAX_CONCURRENT
    timeout_seconds = 60.0

    def __init__(self, context: TargetContext) -> None:
        super().__init__(context)
        self._now: Callable[[], float] = context.http.now
        for broker in self.brokers.values():
            _check(broker)
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT * max(1, len(self.brokers)), thread_name_prefix="email")

    async def send(self, broker: Broker, task: DeliveryTask) -> Confirmation:
        target = task.target
        assert isinstance(target, EmailTarget)
        message = email_message(broker, target, task, self._now())
        session = _SmtpSession(broker)
        loop = asyncio.get_running_loop()
        try:
            reply = await loop.run_in_executor(self._threads, session.send, message, target.to)
        finally:
            session.abort()
        return Confirmation(str(message["Message-ID"]), {"reply": reply[:200], "recipients": len(target.to)})

    def failure(self, broker: Broker, error: Exception) -> RetryDelivery | Refused:
        if isinstance(error, smtplib.SMTPAuthenticationError | smtplib.SMTPNotSupportedError | ssl.SSLCertVerificationError):
            return misconfigured(broker, _plain_error(error), "login")
        if isinstance(error, smtplib.SMTPRecipientsRefused):
            codes = [code for code, _ in error.recipients.values()]
            is_final = bool(codes) and all(500 <= code < 600 for code in codes)
            return (refused if is_final else misconfigured)(broker, _plain_error(error), "recipients")
        if isinstance(error, smtplib.SMTPResponseException) and 500 <= error.smtp_code < 600:
            return refused(broker, _plain_error(error))
        if isinstance(error, smtplib.SMTPException | OSError | EOFError):
            return unavailable(broker, _plain_error(error))
        return super().failure(broker, error)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _SmtpSession:
    """One connection for one message. `abort` may be called from another thread; it ends what `send` waits for."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._client: smtplib.SMTP | None = None
        self._is_aborted = False

    def send(self, message: EmailMessage, recipients: list[str]) -> str:
        """Send the message to all recipients, or raise an error. Returns the reply to the data."""
        client = self._connect()
        try:
            if option(self._broker, "tls", str, "starttls") == "starttls":
                client.starttls(context=_tls(self._broker))
            username = self._broker.options.get("username")
            if username is not None:
                client.login(str(username), option(self._broker, "password", str, ""))
            return _transfer(client, message, recipients)
        finally:
            with contextlib.suppress(smtplib.SMTPException, OSError):
                client.quit()
            client.close()

    def _connect(self) -> smtplib.SMTP:
        broker = self._broker
        host, mode = option(broker, "host", str), option(broker, "tls", str, "starttls")
        port, name = option(broker, "port", int, _DEFAULT_PORTS[mode]), _client_name()
        client: smtplib.SMTP
        if mode == "tls":
            client = smtplib.SMTP_SSL(host, port, name, timeout=CONNECT_SECONDS, context=_tls(broker))
        else:
            client = smtplib.SMTP(host, port, name, timeout=CONNECT_SECONDS)
        with self._lock:
            self._client = client
            is_aborted = self._is_aborted
        if is_aborted:
            client.close()
            raise ConnectionAbortedError("the delivery was cancelled")
        if client.sock is not None:
            client.sock.settimeout(STEP_SECONDS)
        return client

    def abort(self) -> None:
        with self._lock:
            self._is_aborted = True
            sock = None if self._client is None else self._client.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _transfer(client: smtplib.SMTP, message: EmailMessage, recipients: list[str]) -> str:
    """Send a message only if the server accepts every recipient, so that a retry sends it to nobody twice."""
    client.ehlo_or_helo_if_needed()
    options = ["body=8bitmime"] if client.has_extn("8bitmime") else []
    _expect(client.mail(str(message["From"]), options), smtplib.SMTPSenderRefused, str(message["From"]))
    replies = {address: client.rcpt(address) for address in recipients}
    wrong = {address: (code, text) for address, (code, text) in replies.items() if code not in (250, 251)}
    if wrong:
        raise smtplib.SMTPRecipientsRefused(wrong)
    # Folded lines of ASCII text would begin with a space too many. Encoded words of other text have to be short.
    width = 998 if str(message["Subject"]).isascii() else 78
    code, text = client.data(message.as_bytes(policy=SMTP.clone(max_line_length=width)))
    if code != 250:
        raise smtplib.SMTPDataError(code, text)
    return text.decode("utf-8", "replace")


def _expect(reply: tuple[int, bytes], error: Any, *arguments: Any) -> None:
    code, text = reply
    if code != 250:
        raise error(code, text, *arguments)


def email_message(broker: Broker, target: EmailTarget, task: DeliveryTask, now: float) -> EmailMessage:
    """Return the message. email.message refuses a header with a line break."""
    text = message_text(task)
    sender = option(broker, "from", str)
    message = EmailMessage(policy=SMTP)
    message["From"] = sender
    message["To"] = ", ".join(target.to)
    message["Subject"] = target.subject or text.title
    message["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
    message["Message-ID"] = f"<{task.message_id}@{sender.rpartition('@')[2]}>"
    # Automatic replies, such as those about an absence, are not sent to it.
    message["Auto-Submitted"] = "auto-generated"
    for name, value in message_headers(task).items():
        if not has_line_control(value) and value.isascii():
            message[f"X-{name.title()}"] = value
    message.set_content(text.text + "\n", cte="quoted-printable")
    return message


def _check(broker: Broker) -> None:
    option(broker, "host", str)
    mode = option(broker, "tls", str, "starttls")
    if mode not in _TLS_MODES:
        raise SettingMissing.of(broker, f"tls must be one of {', '.join(_TLS_MODES)}")
    port = option(broker, "port", int, _DEFAULT_PORTS[mode])
    if not 1 <= port <= 65_535:
        raise SettingMissing.of(broker, "port must be from 1 to 65535")
    if not is_address(option(broker, "from", str)):
        raise SettingMissing.of(broker, "from must be an e-mail address such as everbeat@example.org")
    username, password = (option(broker, name, str, "") for name in ("username", "password"))
    if bool(username) != bool(password):
        raise SettingMissing.of(broker, "username and password require each other; one of them is missing")
    if username and mode == "none" and not option(broker, "allow_plain_login", bool, False):
        raise SettingMissing.of(broker, "a password is not sent without TLS; set tls, or allow_plain_login = true")
    _tls(broker)


def _tls(broker: Broker) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if ca_file := option(broker, "ca_file", str, ""):
            context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingMissing.of(broker, f"ca_file cannot be read: {error}") from None
    return context


def _client_name() -> str:
    """Return the name for EHLO. getfqdn, the default of smtplib, may wait for a DNS server."""
    name = socket.gethostname()
    return name if name.isascii() and not has_line_control(name) and " " not in name else "everbeat"


def _plain_error(error: BaseException) -> str:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "; ".join(f"{address}: {_reply(code, text)}" for address, (code, text) in error.recipients.items())
    if isinstance(error, smtplib.SMTPResponseException):
        return _reply(error.smtp_code, error.smtp_error)
    return f"{type(error).__name__}: {error}"


def _reply(code: int, text: bytes | str) -> str:
    return f"{code} {text.decode('utf-8', 'replace') if isinstance(text, bytes) else text}"


def make_target(context: TargetContext) -> Target:
    return EmailSender(context)

"""The door before the app: closed while a node waits for its database or migrates it, and then it says so.

Whoever supervises the process hears that it lives, whoever would send it requests that it is not ready, and everybody else
when to come again. Nothing of the app is asked: its services may need what is not there yet.

Whoever is answered before a long body has come is sent away with the answer, and hung up on if they do not go: the server would
wait for the rest of the body, and has no deadline for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import msgspec
import uuid_utils
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from everbeat.api.fair_scheduling import FairScheduler
from everbeat.api.problems import MEDIA_TYPE, UNAVAILABLE, HttpProblem, problem_body

_RETRY = (b"retry-after", b"1")
_SMALL_BYTES, _SMALL_SECONDS = 1024 * 1024, 1.0
_LINGER_BYTES, _LINGER_SECONDS, _LINGER_PAUSE_SECONDS = 16 * 1024 * 1024, 2.0, 0.005


class StartupGate:
    def __init__(self, app: ASGIApp, hang_up: Callable[[Sequence[Any]], None] | None = None) -> None:
        self._app = app
        self._hang_up = hang_up
        self._turnstile = FairScheduler()
        self.is_open = False
        self.waits_for = "the database was not reached yet"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and (length := _announced(scope)):
            body = _Body(receive, send, length)
            await self._answer(scope, body.receive, body.send)
            if not await body.is_over() and self._hang_up is not None and scope["client"] is not None:
                self._hang_up(scope["client"])
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
        elif self.is_open:
            await self._turnstile.paced(cast(Coroutine[Any, Any, None], self._app(scope, receive, send)))
        elif scope["path"] == "/healthz":
            await _send(send, 200, {"status": "ok", "loops": {}})
        elif scope["path"] == "/readyz":
            await _send(send, 503, {"status": "unready", "database": self.waits_for})
        else:
            await _send(send, 503, None)


class _Body:
    """A body on its way. What is left of a small one is read before the answer is begun, so that the connection can go on.

    After an answer to a larger or slower one the connection ends. Some of the rest is still taken and thrown away: closed under
    a client that is sending, it would often not read what it was answered.
    """

    __slots__ = ("_is_early", "_left", "_receive", "_send")

    def __init__(self, receive: Receive, send: Send, length: float) -> None:
        self._receive = receive
        self._send = send
        self._left = length
        self._is_early = False

    async def receive(self) -> Any:
        message: Any = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if not message.get("more_body", False):
                self._left = 0
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start" and self._left > 0:
            if self._left <= _SMALL_BYTES or self._left == math.inf:
                await self._pass_over(_SMALL_BYTES, _SMALL_SECONDS)
            if self._left > 0:
                self._is_early = True
                message["headers"] = [*message["headers"], (b"connection", b"close")]
        await self._send(message)

    async def is_over(self) -> bool:
        if self._is_early:
            await self._pass_over(_LINGER_BYTES, _LINGER_SECONDS, pause_seconds=_LINGER_PAUSE_SECONDS)
        return self._left <= 0 or not self._is_early

    async def _pass_over(self, most: int, seconds: float, *, pause_seconds: float = 0.0) -> None:
        passed = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._left > 0 and passed < most:
                    message = await self.receive()
                    if message["type"] != "http.request":  # also said, wrongly, after a read that was broken off
                        break
                    passed += len(message.get("body", b""))
                    await asyncio.sleep(pause_seconds)  # there is no hurry


def _announced(scope: Scope) -> float:
    """How long the body is said to be; 0 if there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else math.inf
        if name == b"transfer-encoding":
            return math.inf
    return 0


async def _send(send: Send, status: int, answer: dict[str, Any] | None) -> None:
    """Without an answer: the problem."""
    request_id = str(uuid_utils.uuid7())
    if answer is None:
        body, media_type = (
            problem_body(HttpProblem(UNAVAILABLE, "The node waits for its database; try again soon."), request_id),
            MEDIA_TYPE,
        )
    else:
        body, media_type = msgspec.json.encode(answer), "application/json"
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-request-id", request_id.encode()),
        *([_RETRY] if status == 503 else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})

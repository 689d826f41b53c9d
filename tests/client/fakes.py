"""A minimal fake node for tests that do not need a real one. It records what it receives, and responds over ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec

from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import (
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseFailRequest,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResult,
    LeaseReleaseRequest,
    LeaseResult,
    TaskInput,
)
from everbeat.core.tasks import ClaimedTask

Respond = Callable[[str, str, Any], tuple[int, Any]]


class FakeNode:
    """Tasks, leases and API in one object. If `error` is set, the services raise it."""

    def __init__(self, respond: Respond | None = None) -> None:
        self.submitted: list[TaskInput] = []
        self.requested: list[tuple[str, str, Any]] = []
        self.hosts: list[str] = []
        self.error: EverbeatError | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_stopped = False
        self._respond = respond or (lambda method, path, body: (200, {"method": method, "path": path, "body": body}))

    @property
    def tasks(self) -> FakeNode:
        return self

    @property
    def leases(self) -> FakeNode:
        return self

    async def start(self) -> FakeNode:
        self.loop = asyncio.get_running_loop()
        return self

    async def stop(self) -> None:
        self.is_stopped = True

    async def submit_batch(
        self, tenant_id: UUID, tasks: Sequence[TaskInput], /, *, traceparent: str | None = None
    ) -> list[UUID]:
        if self.loop is not None:
            assert asyncio.get_running_loop() is self.loop
        if self.error is not None:
            raise self.error
        self.submitted += tasks
        return [uuid4() for _ in tasks]

    async def claim(self, tenant_id: UUID, claim: LeaseClaimRequest, /) -> list[ClaimedTask]:
        return []

    async def heartbeat(self, tenant_id: UUID, heartbeat: LeaseHeartbeatRequest, /) -> list[LeaseHeartbeatResult]:
        return [LeaseHeartbeatResult(lease.id, "ok", None) for lease in heartbeat.leases]

    async def complete(self, tenant_id: UUID, completion: LeaseCompleteRequest, /) -> list[LeaseResult]:
        return [LeaseResult(one.id, "ok") for one in completion.results]

    async def fail(self, tenant_id: UUID, failures: LeaseFailRequest, /) -> list[LeaseResult]:
        return [LeaseResult(one.id, "ok", "retry") for one in failures.failures]

    async def release(self, tenant_id: UUID, release: LeaseReleaseRequest, /) -> list[LeaseResult]:
        return [LeaseResult(one.id, "ok") for one in release.leases]

    @property
    def asgi(self) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            body = (await receive())["body"]
            self.hosts += [value.decode() for name, value in scope["headers"] if name == b"host"]
            query = scope["query_string"].decode()
            requested = (
                scope["method"],
                scope["path"] + (f"?{query}" if query else ""),
                msgspec.json.decode(body) if body else None,
            )
            self.requested.append(requested)
            status, response = self._respond(*requested)
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
            await send({"type": "http.response.body", "body": b"" if response is None else msgspec.json.encode(response)})

        return app

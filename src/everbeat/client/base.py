"""The transport interface: how the SDK sends requests to a server, over HTTP or in the same process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from uuid import UUID

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


class ApiResponse(NamedTuple):
    """The response to a request. `body` is decoded JSON, or None if there is no body. Problems are raised, not returned."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Transport(Protocol):
    """Sends the SDK's requests to a server. All transports raise the errors in client/errors.py.

    Submits and the requests of workers have their own methods. All other requests of the HTTP API use `request`.
    """

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
        """Send any request of the HTTP API, for example with the path /v1/tasks."""

    async def submit(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        """Submit tasks atomically; each may have its own idempotency_key. Returns the ids in the same order."""

    async def claim(self, claim: LeaseClaimRequest) -> list[ClaimedTask]: ...

    async def heartbeat(self, heartbeat: LeaseHeartbeatRequest) -> list[LeaseHeartbeatResult]: ...

    async def complete(self, completion: LeaseCompleteRequest) -> list[LeaseResult]: ...

    async def fail(self, failures: LeaseFailRequest) -> list[LeaseResult]: ...

    async def release(self, release: LeaseReleaseRequest) -> list[LeaseResult]: ...

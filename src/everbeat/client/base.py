"""The Transport contract: how the SDK reaches Everbeat, over HTTP or in this very process."""

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
    """The answer to a request: decoded JSON, or None where there is no body. Problems are raised, not returned."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Transport(Protocol):
    """All that the SDK asks of a server. Errors are those of client/errors.py, whatever the transport.

    The verbs of the hot path have methods of their own; everything else of API.md goes through `request`.
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
        """Any request of API.md; path such as /v1/tasks."""

    async def submit(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        """Submit tasks all or nothing; each may carry its idempotency_key. The ids, in order."""

    async def claim(self, claim: LeaseClaimRequest) -> list[ClaimedTask]: ...

    async def heartbeat(self, heartbeat: LeaseHeartbeatRequest) -> list[LeaseHeartbeatResult]: ...

    async def complete(self, completion: LeaseCompleteRequest) -> list[LeaseResult]: ...

    async def fail(self, failures: LeaseFailRequest) -> list[LeaseResult]: ...

    async def release(self, release: LeaseReleaseRequest) -> list[LeaseResult]: ...

"""The transport to a node in this process: direct calls to services, and ASGI without a socket for the rest of the API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from everbeat.client import requests
from everbeat.client.asgi import call_asgi
from everbeat.client.base import ApiResponse
from everbeat.client.errors import problem_of_error
from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import (
    MAX_SUBMITTED,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseFailRequest,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResult,
    LeaseReleaseRequest,
    LeaseResult,
    TaskInput,
)
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import ClaimedTask


class LocalTaskService(Protocol):
    async def submit_batch(
        self, tenant_id: UUID, tasks: Sequence[TaskInput], /, *, traceparent: str | None = None
    ) -> list[UUID]: ...


class LocalLeaseService(Protocol):
    async def claim(self, tenant_id: UUID, claim: LeaseClaimRequest, /) -> list[ClaimedTask]: ...

    async def heartbeat(self, tenant_id: UUID, heartbeat: LeaseHeartbeatRequest, /) -> list[LeaseHeartbeatResult]: ...

    async def complete(self, tenant_id: UUID, completion: LeaseCompleteRequest, /) -> list[LeaseResult]: ...

    async def fail(self, tenant_id: UUID, failures: LeaseFailRequest, /) -> list[LeaseResult]: ...

    async def release(self, tenant_id: UUID, release: LeaseReleaseRequest, /) -> list[LeaseResult]: ...


class LocalNode(Protocol):
    """The parts of a node that this transport uses. The owner of the node starts and stops it."""

    @property
    def tasks(self) -> LocalTaskService: ...

    @property
    def leases(self) -> LocalLeaseService: ...

    @property
    def asgi(self) -> Any: ...


@contextlib.contextmanager
def _same_errors() -> Iterator[None]:
    try:
        yield
    except EverbeatError as error:
        raise problem_of_error(error) from error


class InProcessTransport:
    """Sends requests to a node in this process. Does not retry, because no response can be lost."""

    def __init__(self, node: LocalNode, *, tenant_id: UUID = DEFAULT_TENANT) -> None:
        self._node = node
        self._tenant = tenant_id

    async def open(self) -> None:
        """Do nothing: the node is already started."""

    async def close(self) -> None:
        """Do nothing: the owner of the node stops it."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        request = requests.build(method, path, query=query, body=body, headers=headers)
        response = await call_asgi(self._node.asgi, request)
        requests.raise_for_problem(response)
        return requests.api_response_of(response)

    async def submit(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        ids: list[UUID] = []
        with _same_errors():
            for start in range(0, len(tasks), MAX_SUBMITTED):
                ids += await self._node.tasks.submit_batch(self._tenant, tasks[start : start + MAX_SUBMITTED])
        return ids

    async def claim(self, claim: LeaseClaimRequest) -> list[ClaimedTask]:
        with _same_errors():
            return await self._node.leases.claim(self._tenant, claim)

    async def heartbeat(self, heartbeat: LeaseHeartbeatRequest) -> list[LeaseHeartbeatResult]:
        with _same_errors():
            return await self._node.leases.heartbeat(self._tenant, heartbeat)

    async def complete(self, completion: LeaseCompleteRequest) -> list[LeaseResult]:
        with _same_errors():
            return await self._node.leases.complete(self._tenant, completion)

    async def fail(self, failures: LeaseFailRequest) -> list[LeaseResult]:
        with _same_errors():
            return await self._node.leases.fail(self._tenant, failures)

    async def release(self, release: LeaseReleaseRequest) -> list[LeaseResult]:
        with _same_errors():
            return await self._node.leases.release(self._tenant, release)

"""The transport to a node in this very process: services called directly, the rest of the API over ASGI without a socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from everbeat.client import requests
from everbeat.client.base import ApiResponse
from everbeat.client.errors import problem_of_error
from everbeat.client.requests import HttpResponse
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

if TYPE_CHECKING:
    import httpx


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
    """What this transport needs of a node; the node lives and dies by its owner's hand."""

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
    """Nothing is repeated here: there is no answer to lose between two objects of one process."""

    def __init__(self, node: LocalNode, *, tenant_id: UUID = DEFAULT_TENANT) -> None:
        self._node = node
        self._tenant = tenant_id
        self._client: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """The node is open already."""

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

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
        raw = await self._asgi().request(request.method, request.path, headers=request.headers, content=request.body)
        response = HttpResponse(raw.status_code, raw.headers, raw.content)
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

    def _asgi(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx

            self._client = httpx.AsyncClient(
                transport=httpx.ASGITransport(self._node.asgi), base_url="http://localhost", trust_env=False
            )
        return self._client

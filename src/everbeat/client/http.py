"""Transports over HTTP: async for programs with an event loop, and a sync one for everything else and for threads.

Both send what client/requests.py builds and repeat as client/exchange.py says; here is only the IO.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from everbeat.client import requests
from everbeat.client.base import ApiResponse
from everbeat.client.coalescing import Coalescer
from everbeat.client.exchange import Exchange, NoResponse, RetryBudget, Sleep, exchange
from everbeat.client.requests import HttpResponse, Request
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
from everbeat.version import __version__

if TYPE_CHECKING:
    import httpx

_TIMEOUT_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_MAX_CONNECTIONS = 100
_KEPT_ALIVE_SECONDS = 60.0
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def _client_options(url: str, api_key: str | None) -> dict[str, Any]:
    import httpx

    parts = urlsplit(url)
    headers = {"user-agent": f"everbeat-python/{__version__}", "accept": "application/json"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    return {
        "base_url": url,
        "headers": headers,
        "timeout": httpx.Timeout(_TIMEOUT_SECONDS, connect=_CONNECT_SECONDS),
        "limits": httpx.Limits(
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_CONNECTIONS,
            keepalive_expiry=_KEPT_ALIVE_SECONDS,
        ),
        # Loading certificates takes long and a plain connection has no use for them; no proxy leads to this machine.
        "verify": _verification() if parts.scheme == "https" else False,
        "trust_env": parts.hostname not in _LOOPBACK_HOSTS,
    }


def _verification() -> Any:
    """Whose certificates are trusted: SSL_CERT_FILE says so also for a server on this machine."""
    import ssl

    file = os.environ.get("SSL_CERT_FILE")
    return True if file is None else ssl.create_default_context(cafile=file)


def _send_options(request: Request) -> dict[str, Any]:
    import httpx

    options: dict[str, Any] = {"headers": request.headers, "content": request.body}
    if request.timeout_seconds is not None:
        options["timeout"] = httpx.Timeout(request.timeout_seconds, connect=_CONNECT_SECONDS)
    return options


def _response_of(response: httpx.Response) -> HttpResponse:
    return HttpResponse(response.status_code, response.headers, response.content)


def _no_response_of(error: httpx.TransportError) -> NoResponse:
    import httpx

    was_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return NoResponse(str(error) or type(error).__name__, was_sent)


class SyncHttpTransport:
    """The blocking shell; may be shared by threads."""

    def __init__(self, url: str, api_key: str | None = None, *, retry_budget: RetryBudget | None = None) -> None:
        import httpx

        self.url = url
        self._retry_budget = retry_budget or RetryBudget()
        self._client = httpx.Client(**_client_options(url, api_key))

    def close(self) -> None:
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        return requests.api_response_of(self._exchange(requests.build(method, path, query=query, body=body, headers=headers)))

    def submit(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        return [id_ for request in requests.submit(tasks) for id_ in requests.ids_of(self._exchange(request), request)]

    def _exchange(self, request: Request) -> HttpResponse:
        steps: Exchange = exchange(request, self.url, self._retry_budget)
        outcome: HttpResponse | NoResponse | None = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                response: HttpResponse = done.value
                return response
            if isinstance(step, Sleep):
                time.sleep(step.seconds)
                outcome = None
            else:
                outcome = self._send(step.request)

    def _send(self, request: Request) -> HttpResponse | NoResponse:
        import httpx

        try:
            return _response_of(self._client.request(request.method, request.path, **_send_options(request)))
        except httpx.TransportError as error:
            return _no_response_of(error)


class HttpTransport:
    """The async shell; belongs to the event loop it is first used on."""

    def __init__(self, url: str, api_key: str | None = None, *, retry_budget: RetryBudget | None = None) -> None:
        import httpx

        self.url = url
        self._api_key = api_key
        self._retry_budget = retry_budget or RetryBudget()
        self._client = httpx.AsyncClient(**_client_options(url, api_key))
        self._coalescer = Coalescer(self._submit)

    async def open(self) -> None:
        """Connections are made when they are needed."""

    async def close(self) -> None:
        await self._coalescer.close()
        await self._client.aclose()

    def for_thread(self) -> HttpTransport:
        """Another transport to the same server, for an event loop in a thread of its own; the caller closes it."""
        return HttpTransport(self.url, self._api_key, retry_budget=self._retry_budget)

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
        return requests.api_response_of(await self._exchange(request))

    async def submit(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        return [await self._coalescer.submit(tasks[0])] if len(tasks) == 1 else await self._submit(tasks)

    async def _submit(self, tasks: Sequence[TaskInput]) -> list[UUID]:
        ids: list[UUID] = []
        for request in requests.submit(tasks):
            ids += requests.ids_of(await self._exchange(request), request)
        return ids

    async def claim(self, claim: LeaseClaimRequest) -> list[ClaimedTask]:
        return requests.claimed_tasks_of(await self._exchange(requests.claim(claim)))

    async def heartbeat(self, heartbeat: LeaseHeartbeatRequest) -> list[LeaseHeartbeatResult]:
        return requests.lease_statuses_of(await self._exchange(requests.heartbeat(heartbeat)))

    async def complete(self, completion: LeaseCompleteRequest) -> list[LeaseResult]:
        return requests.lease_results_of(await self._exchange(requests.complete(completion)))

    async def fail(self, failures: LeaseFailRequest) -> list[LeaseResult]:
        return requests.lease_results_of(await self._exchange(requests.fail(failures)))

    async def release(self, release: LeaseReleaseRequest) -> list[LeaseResult]:
        return requests.lease_results_of(await self._exchange(requests.release(release)))

    async def _exchange(self, request: Request) -> HttpResponse:
        steps: Exchange = exchange(request, self.url, self._retry_budget)
        outcome: HttpResponse | NoResponse | None = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                response: HttpResponse = done.value
                return response
            if isinstance(step, Sleep):
                await asyncio.sleep(step.seconds)
                outcome = None
            else:
                outcome = await self._send(step.request)

    async def _send(self, request: Request) -> HttpResponse | NoResponse:
        import httpx

        try:
            return _response_of(await self._client.request(request.method, request.path, **_send_options(request)))
        except httpx.TransportError as error:
            return _no_response_of(error)

"""The async HTTP transport, using aiohttp. client/requests.py builds the requests and client/exchange.py retries them."""

from __future__ import annotations

import asyncio
import functools
import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everbeat.client import requests
from everbeat.client.base import ApiResponse
from everbeat.client.coalescing import Coalescer
from everbeat.client.endpoint import CONNECT_TIMEOUT_SECONDS, KEEPALIVE_SECONDS, MAX_CONNECTIONS, TIMEOUT_SECONDS, endpoint_of
from everbeat.client.exchange import Exchange, NoResponse, RetryBudget, Sleep, exchange
from everbeat.client.requests import HttpResponse, Request
from everbeat.client.servers import Servers
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

if TYPE_CHECKING:
    import aiohttp

# The timeout of a request starts when the last byte is sent. A body that does not fit into the socket buffers can block
# before that, so a request with a large body also has a total timeout. Other requests save the cost of that timer.
_LARGE_BODY_BYTES = 64 * 1024
_LARGE_BODY_TIMEOUT_FACTOR = 4


class HttpTransport:
    """The transport for async code. It belongs to the event loop on which it is first used."""

    def __init__(self, url: str | Servers, api_key: str | None = None, *, retry_budget: RetryBudget | None = None) -> None:
        self.servers = url if isinstance(url, Servers) else Servers(url)
        self._api_key = api_key
        self._retry_budget = retry_budget or RetryBudget()
        self._sessions: dict[str, _Session] = {}
        self._coalescer = Coalescer(self._submit)

    async def open(self) -> None:
        """Do nothing: connections are opened when they are needed."""

    async def close(self) -> None:
        await self._coalescer.close()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    @property
    def url(self) -> str:
        return str(self.servers)

    def for_thread(self) -> HttpTransport:
        """Return another transport to the same servers, for the event loop of another thread. The caller closes it."""
        return HttpTransport(self.servers, self._api_key, retry_budget=self._retry_budget)

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
        steps: Exchange = exchange(request, self.servers, self._retry_budget)
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
                outcome = await self._send(step.request, step.url)

    async def _send(self, request: Request, url: str) -> HttpResponse | NoResponse:
        session = self._sessions.get(url)
        if session is None:
            session = self._sessions[url] = _Session(url, self._api_key)
        return await session.send(request)


class _Session:
    """The connections of a transport to one server, created on its event loop. Only then aiohttp is imported: this is slow."""

    def __init__(self, url: str, api_key: str | None) -> None:
        import aiohttp
        import yarl

        endpoint = endpoint_of(url, api_key)
        self._url = endpoint.url
        self._parse_url = functools.partial(yarl.URL, encoded=True)
        self._session = aiohttp.ClientSession(
            headers=endpoint.headers,
            timeout=_timeout_of(TIMEOUT_SECONDS),
            connector=aiohttp.TCPConnector(
                limit=MAX_CONNECTIONS,
                keepalive_timeout=KEEPALIVE_SECONDS,
                ssl=endpoint.tls if endpoint.tls is not None else True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("content-type",),
            proxy=endpoint.proxy,
            auto_decompress=False,
        )
        self._no_response_errors = (aiohttp.ClientError, TimeoutError, OSError)

    async def close(self) -> None:
        await self._session.close()

    async def send(self, request: Request) -> HttpResponse | NoResponse:
        is_large = request.body is not None and len(request.body) > _LARGE_BODY_BYTES
        options: dict[str, Any] = {}
        if request.timeout_seconds is not None or is_large:
            options["timeout"] = _timeout_of(request.timeout_seconds or TIMEOUT_SECONDS, is_large=is_large)
        try:
            async with self._session.request(
                request.method,
                self._parse_url(self._url + request.path),
                headers=request.headers,
                # aiohttp writes bytes in one piece, and a stream in chunks.
                data=io.BytesIO(request.body) if is_large and request.body is not None else request.body,
                allow_redirects=False,
                **options,
            ) as response:
                return HttpResponse(response.status, response.headers, await response.read())
        except self._no_response_errors as error:
            return _no_response_of(error)


def _timeout_of(seconds: float, *, is_large: bool = False) -> aiohttp.ClientTimeout:
    import aiohttp

    total = seconds * _LARGE_BODY_TIMEOUT_FACTOR if is_large else None
    return aiohttp.ClientTimeout(total=total, connect=seconds, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=seconds)


def _no_response_of(error: Exception) -> NoResponse:
    import aiohttp

    if isinstance(error, aiohttp.ClientSSLError):
        return NoResponse(str(getattr(error, "certificate_error", error)), was_sent=False)
    if isinstance(error, aiohttp.ClientConnectorError):
        return NoResponse(_system_text(error.os_error) or str(error), was_sent=False)
    if isinstance(error, aiohttp.ConnectionTimeoutError | aiohttp.ClientHttpProxyError):
        return NoResponse(str(error) or "timed out", was_sent=False)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return NoResponse("the server closed the connection without a response", was_sent=True)
    if isinstance(error, TimeoutError):
        return NoResponse("timed out", was_sent=True)
    return NoResponse(str(error) or type(error).__name__, was_sent=True)


def _system_text(error: OSError) -> str:
    """Return the system's text, such as "Connection refused", instead of asyncio's "Connect call failed" with the address."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)

"""The http target: sends a task as an HTTP request, signed as Standard Webhooks 1.0, and judges the response.

Names are resolved here, and every address is judged before a connection is opened to it, so that a name whose address changes
after its registration cannot reach a private network. Redirects are not followed, bodies are not decompressed, proxies of the
environment are not used, and cookies are not kept. A response is read up to a limit, and within the total timeout.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from everbeat.core.deliveries import MAX_RESPONSE_BODY_BYTES, DeliveryResponse, DeliveryTask, message_headers
from everbeat.core.targets import HttpTarget as HttpSpec
from everbeat.core.webhook_addresses import UrlJudge, WebhookRules, may_connect
from everbeat.core.webhooks import matches_status, retry_after_seconds, signature_headers
from everbeat.delivery.base import (
    Accepted,
    Delivered,
    DeliveryOutcome,
    HttpOptions,
    Refused,
    RetryDelivery,
    SettingMissing,
    Target,
    TargetContext,
)
from everbeat.version import __version__

MAX_RESPONSE_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 16 * 1024
_RESOLVER_THREADS = 32
_RESOLVE_SECONDS = 5.0
_DNS_CACHE_SECONDS = 10
_KEEPALIVE_SECONDS = 30.0
_DEFAULT_HOLD_SECONDS = 1.0
_HEADERS = {"user-agent": f"everbeat/{__version__}", "accept": "*/*", "accept-encoding": "identity"}
_HEADERS_WITH_BODY = {**_HEADERS, "content-type": "application/json"}


class AddressRefused(Exception):
    """The name has only addresses that webhooks may not be sent to."""


class GuardedResolver(AbstractResolver):
    """Resolves names, and returns only addresses that may be connected to. The connector connects to these addresses."""

    def __init__(self, rules: WebhookRules) -> None:
        self._rules = rules
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="webhook-dns")

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            addresses = await self.look_up(host, port)
        name = host.lower().rstrip(".")
        allowed = [one for one in addresses if self._rules.trusts(name) or may_connect(ipaddress.ip_address(one), self._rules)]
        if not allowed:
            raise AddressRefused(name)
        return [
            ResolveResult(
                hostname=host,
                host=one,
                port=port,
                family=socket.AF_INET6 if ":" in one else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for one in allowed
        ]

    async def look_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name. In threads of its own, so that a slow DNS server delays nothing else."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        )
        return list(dict.fromkeys(str(one[4][0]) for one in found))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class HttpDelivery(Target):
    kind = "http"

    def __init__(self, options: HttpOptions, resolver: GuardedResolver | None = None) -> None:
        self.max_concurrent = options.max_concurrent
        self.timeout_seconds = options.timeout_seconds
        self._options = options
        self._judge = UrlJudge(options.rules)
        self._resolver = resolver or GuardedResolver(options.rules)
        self._tls = tls_context(options)
        self._session: aiohttp.ClientSession | None = None

    async def deliver(self, task: DeliveryTask) -> DeliveryOutcome:
        spec = task.target
        assert isinstance(spec, HttpSpec)
        endpoint = task.endpoint
        url = spec.url if endpoint is None else endpoint.url
        assert url is not None
        judged = self._judge.judge(url)
        if judged.message:
            return Refused(f"the URL {judged.message}", "address-not-allowed")
        parsed = URL(url)
        if (parsed.host or "").rstrip(".") != judged.host:
            return Refused("the URL is ambiguous: its host can be read in two ways", "address-not-allowed")
        started = time.perf_counter()
        try:
            status, headers, body, is_whole = await self._send(task, spec, parsed)
        except AddressRefused:
            return _address_refused()
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
            return _connection_failure(error)
        response = DeliveryResponse(
            duration_ms=round((time.perf_counter() - started) * 1000, 3),
            status=status,
            size=len(body) if is_whole else None,
            body=body[:MAX_RESPONSE_BODY_BYTES].decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}"),
            detail={} if is_whole else {"truncated": True},
        )
        if spec.mode == "callback" and status == 202:
            return Accepted(None, response)
        if matches_status(spec.success, status):
            return Delivered(_result_of(headers, body, is_whole), response)
        return self._failure(spec, status, headers, response)

    async def _send(self, task: DeliveryTask, spec: HttpSpec, url: URL) -> tuple[int, Mapping[str, str], bytes, bool]:
        endpoint = task.endpoint
        method = endpoint.method if endpoint is not None and endpoint.method and spec.method == "POST" else spec.method
        body = b"" if method == "GET" else task.payload
        headers = self._headers(task, spec, body)
        session = self._session or self._make_session()
        async with session.request(method, url, data=body or None, headers=headers, allow_redirects=False) as response:
            chunks, size = [], 0
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_RESPONSE_BYTES:
                    response.close()  # the rest is not read, so the connection cannot be used again
                    return response.status, response.headers, b"".join(chunks)[:MAX_RESPONSE_BYTES], False
            return response.status, response.headers, b"".join(chunks), True

    def _headers(self, task: DeliveryTask, spec: HttpSpec, body: bytes) -> dict[str, str]:
        endpoint = task.endpoint
        headers = {**_HEADERS_WITH_BODY} if body else {**_HEADERS}
        for given in (endpoint.headers if endpoint is not None else {}, spec.headers):
            for name, value in given.items():
                headers[name.lower()] = value
        headers.update(message_headers(task))
        sent_at = int(self._options.now())
        headers.update(signature_headers(task.message_id, sent_at, body, endpoint.secrets if endpoint is not None else ()))
        if spec.mode == "callback" and task.callback_url is not None and task.callback_token is not None:
            headers |= {"everbeat-callback-url": task.callback_url, "everbeat-callback-token": task.callback_token}
        return headers

    def _failure(
        self, spec: HttpSpec, status: int, headers: Mapping[str, str], response: DeliveryResponse
    ) -> RetryDelivery | Refused:
        kind = f"status-{status}"
        if not matches_status(spec.retry_on, status):
            if status == 410:
                return Refused("the destination answered 410 Gone; it wants no more calls", kind, response, True)
            if 300 <= status < 400:
                return Refused(f"the destination answered {status}; redirects are not followed", kind, response)
            return Refused(f"the destination answered {status}", kind, response)
        now = datetime.fromtimestamp(self._options.now(), UTC)
        after = retry_after_seconds(headers.get("Retry-After"), now)
        hold_seconds = after or 0.0 if status in (429, 503) else 0.0
        if status == 429 and after is None:
            hold_seconds = _DEFAULT_HOLD_SECONDS
        why = f"the destination answered {status}"
        return RetryDelivery(after, why, kind, response, blames_destination=status >= 500, hold_seconds=hold_seconds)

    def _make_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            ttl_dns_cache=_DNS_CACHE_SECONDS,
            limit=0,
            ssl=self._tls,
            keepalive_timeout=_KEEPALIVE_SECONDS,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),  # the deliverer enforces the total timeout
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            raise_for_status=False,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()


def tls_context(options: HttpOptions) -> ssl.SSLContext:
    """Return a context that verifies certificates. The operator's file adds authorities."""
    try:
        context = ssl.create_default_context()
        if options.ca_file is not None:
            context.load_verify_locations(options.ca_file)
        if options.client_certificate is not None:
            context.load_cert_chain(options.client_certificate, options.client_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingMissing(f"settings: the certificates for webhooks cannot be read: {error}") from None
    return context


def _address_refused() -> Refused:
    # The address is not in the message: it would tell a tenant about the names of a private network.
    return Refused("the host has no address that webhooks may be sent to", "address-not-allowed")


def _connection_failure(error: BaseException) -> DeliveryOutcome:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AddressRefused):
            return _address_refused()
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLError | aiohttp.ClientSSLError):
        return RetryDelivery(None, f"the TLS connection failed: {error}", "tls")
    if isinstance(error, TimeoutError):
        return RetryDelivery(None, "the name of the host was not resolved in time", "timeout")
    return RetryDelivery(None, f"the connection failed: {type(error).__name__}: {error}"[:1000], "connection")


def _result_of(headers: Mapping[str, str], body: bytes, is_whole: bool) -> Any:
    """Return the JSON of the response as the result of the task, if it is JSON."""
    if not is_whole or not headers.get("Content-Type", "").partition(";")[0].strip().lower().endswith(("/json", "+json")):
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def make_target(context: TargetContext) -> Target:
    return HttpDelivery(context.http)

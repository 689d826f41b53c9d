"""Sends short requests to a URL of the operator, such as that of a dead-man's switch.

The URL comes from the settings, not from a tenant, so it may be in a private network.
"""

from __future__ import annotations

import ssl

import aiohttp

from everbeat.version import __version__

_TIMEOUT = aiohttp.ClientTimeout(total=10, connect=5)
_MAX_BODY_BYTES = 10_000


class PingFailed(Exception):
    """The request was not answered with a status of 200 to 299."""


async def ping(url: str, body: str | None = None) -> None:
    """Send a GET request, or a POST request with a text. Raises PingFailed with a reason that does not contain the URL."""
    data = None if body is None else body.encode()[:_MAX_BODY_BYTES]
    headers = {"user-agent": f"everbeat/{__version__}", "content-type": "text/plain; charset=utf-8"}
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers, trust_env=True) as session,
            session.request("GET" if data is None else "POST", url, data=data, allow_redirects=False) as response,
        ):
            if not 200 <= response.status < 300:
                raise PingFailed(f"status {response.status}")
    except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
        raise PingFailed(type(error).__name__) from None

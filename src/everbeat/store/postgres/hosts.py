"""Where a database URL points: one host, or several of which one takes writes; connecting to that one."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

_DEFAULT_PORT = 5432


def split_hosts(url: str) -> list[str]:
    """A URL for each host that it names: `postgresql://user@a:1,b:2/db` is two."""
    scheme, _, rest = url.partition("://")
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    return [f"{scheme}://{user}{at}{host}{rest[end:]}" for host in hosts.split(",")]


def describe_url(url: str) -> str:
    """Where the URL points, without its secrets."""
    urls = split_hosts(url)
    return ",".join(map(_describe_host, urls)) + urlsplit(urls[0]).path


def _describe_host(url: str) -> str:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = parts.hostname or query.get("host", ["local socket"])[0]
    return f"{host}:{parts.port or query.get('port', [_DEFAULT_PORT])[0]}"


class Connector:
    """Connects to the host that takes writes, trying the one that did last time first.

    Each host has a share of the time: one that swallows packets must not keep the others from being asked.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._urls = split_hosts(url)
        self._share = timeout_seconds / len(self._urls)
        self._options: dict[str, Any] = {"timeout": self._share}
        if len(self._urls) > 1 and "target_session_attrs" not in parse_qs(urlsplit(self._urls[0]).query):
            self._options["target_session_attrs"] = "read-write"

    async def __call__(self, *_args: Any, **options: Any) -> asyncpg.Connection:
        failure: Exception = OSError("no host")
        for url in list(self._urls):
            try:
                connection = await asyncpg.connect(url, **{**options, **self._options})
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InternalClientError) as error:
                failure = error
                continue
            self._urls.sort(key=lambda one: one != url)
            return connection
        raise failure

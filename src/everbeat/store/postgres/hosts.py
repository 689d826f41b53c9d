"""Database URLs with one or several hosts, and connections to the host that accepts writes."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

from everbeat.core.database_urls import split_hosts

_DEFAULT_PORT = 5432


def describe_url(url: str) -> str:
    """The hosts and the database of a URL, without user, password and options."""
    urls = split_hosts(url)
    return ",".join(map(_describe_host, urls)) + urlsplit(urls[0]).path


def _describe_host(url: str) -> str:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = parts.hostname or query.get("host", ["local socket"])[0]
    return f"{host}:{parts.port or query.get('port', [_DEFAULT_PORT])[0]}"


class Connector:
    """Connects to the host that accepts writes. The host of the last connection is tried first.

    The timeout is divided among the hosts, so that a host that drops packets does not prevent connections to the others.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._urls = split_hosts(url)
        self._host_timeout = timeout_seconds / len(self._urls)
        self._options: dict[str, Any] = {"timeout": self._host_timeout}
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

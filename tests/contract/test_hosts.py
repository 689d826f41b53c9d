"""Database URLs of one host or several: how they are told, and which host is connected to."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import pytest

from everbeat.store.postgres.hosts import Connector, describe_url, split_hosts


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:secret@db.example/app", "db.example:5432/app"),
        ("postgresql://me:se,cret@a:1,b:2/app?target_session_attrs=any", "a:1,b:2/app"),
        ("postgresql://[::1]:7,b/app", "::1:7,b:5432/app"),
        ("postgresql:///app?host=/run/postgresql", "/run/postgresql:5432/app"),
        ("postgresql://a", "a:5432"),
    ],
)
def test_a_url_is_told_without_its_secrets(url: str, told: str) -> None:
    assert describe_url(url) == told


def test_each_host_has_a_url_of_its_own() -> None:
    both = split_hosts("postgresql://me:pw@a:1,b:2/app?sslmode=require")
    assert both == ["postgresql://me:pw@a:1/app?sslmode=require", "postgresql://me:pw@b:2/app?sslmode=require"]


async def test_a_host_that_says_nothing_keeps_nobody_from_the_next(postgres_url: str) -> None:
    silent = await asyncio.start_server(_listen_only, "127.0.0.1", 0)
    dark = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    parts = urlsplit(postgres_url)
    connect = Connector(postgres_url.replace(parts.netloc, f"{parts.username}@{dark},{parts.hostname}:{parts.port}"), 1.0)
    async with silent:
        for longest in (0.9, 0.4):  # the second time it begins with the one that answered
            started = time.monotonic()
            connection = await connect()
            assert time.monotonic() - started < longest
            assert await connection.fetchval("SELECT 1") == 1
            await connection.close()


async def _listen_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(-1)
    writer.close()

"""Database URLs with one or several hosts: how they are displayed, and which host is used."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import pytest

from everbeat.core.database_urls import split_hosts
from everbeat.store.postgres.hosts import Connector, describe_url


@pytest.mark.parametrize(
    ("url", "displayed"),
    [
        ("postgresql://me:secret@db.example/app", "db.example:5432/app"),
        ("postgresql://me:se,cret@a:1,b:2/app?target_session_attrs=any", "a:1,b:2/app"),
        ("postgresql://[::1]:7,b/app", "::1:7,b:5432/app"),
        ("postgresql:///app?host=/run/postgresql", "/run/postgresql:5432/app"),
        ("postgresql://a", "a:5432"),
    ],
)
def test_a_displayed_url_contains_no_secrets(url: str, displayed: str) -> None:
    assert describe_url(url) == displayed


def test_each_host_has_its_own_url() -> None:
    both = split_hosts("postgresql://me:pw@a:1,b:2/app?sslmode=require")
    assert both == ["postgresql://me:pw@a:1/app?sslmode=require", "postgresql://me:pw@b:2/app?sslmode=require"]


async def test_a_silent_host_does_not_block_the_next_host(postgres_url: str) -> None:
    silent = await asyncio.start_server(_accept_and_stay_silent, "127.0.0.1", 0)
    unresponsive = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    parts = urlsplit(postgres_url)
    connect = Connector(
        postgres_url.replace(parts.netloc, f"{parts.username}@{unresponsive},{parts.hostname}:{parts.port}"), 1.0
    )
    async with silent:
        for max_seconds in (0.9, 0.4):  # the second attempt starts with the host that responded
            started = time.monotonic()
            connection = await connect()
            assert time.monotonic() - started < max_seconds
            assert await connection.fetchval("SELECT 1") == 1
            await connection.close()


async def _accept_and_stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(-1)
    writer.close()

"""HEAD: every GET route answers it with the same status and headers, and without a body. It never keeps a stream open."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from everbeat.api.app import ROUTES
from tests.api.conftest import definition

PATHS = sorted({route.path for route in ROUTES if route.method == "GET"})
_CHANGING = {"x-request-id", "etag", "content-length"}
_VALUES = {"ref": "nightly", "name": "nightly", "id": "01a1e231-932d-71cb-8dab-e37075a3e37c", "tenant": "default"}


@pytest.mark.parametrize("path", PATHS)
async def test_head_answers_like_get(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.post("/v1/schedules", json=definition(name="nightly"))).status_code == 201
    url = path
    for name, value in _VALUES.items():
        url = url.replace(f"{{{name}}}", value)
    async with asyncio.timeout(10):
        head = await client.head(url)
        assert head.content == b""
        if path == "/v1/events":
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            return
        found = await client.get(url)
    assert head.status_code == found.status_code
    assert {*head.headers} - {"content-length"} == {*found.headers} - {"content-length"}
    for name in {*found.headers} - _CHANGING:
        assert head.headers[name] == found.headers[name], name
    assert int(head.headers["content-length"]) > 0


async def test_head_is_allowed_wherever_get_is(client: httpx.AsyncClient) -> None:
    allowed = (await client.request("OPTIONS", "/v1/schedules")).headers["allow"].split(", ")
    assert {"GET", "HEAD"} <= set(allowed)
    assert (await client.head("/v1/worker/claim")).status_code == 405

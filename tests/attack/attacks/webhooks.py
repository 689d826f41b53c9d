"""Webhooks to addresses that are not public, in every way of writing them. They are refused when they are registered."""

from __future__ import annotations

import asyncio

from tests.attack.registry import attack
from tests.attack.target import Target

_PRIVATE = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0x0.0x0.0x1/",
    "http://0177.0.0.1/",
    "http://0/",
    "http://0.0.0.0/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fd00::1]/",
    "http://[ff02::1]/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://198.18.0.1/",
    "http://127.0.0.1.:80/",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://user:password@example.com/",
    "http://example.com@127.0.0.1/",
    "http://127.0.0.1#@example.com/",
    "http://example.com\\@127.0.0.1/",
    "http://example.com\r\nX-Injected: 1/",
    "http://exam\tple.com/",
    "http:///etc/passwd",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "ftp://example.com/",
    "javascript:alert(1)",
    "//127.0.0.1/",
    "http://example.com:99999/",
    "http://example.com:22x/",
    "http://" + "a" * 100_000 + ".example.com/",
]
_HEADERS: list[dict[str, str]] = [
    {"Host": "localhost"},
    {"Content-Length": "0"},
    {"Transfer-Encoding": "chunked"},
    {"Connection": "close"},
    {"X-A": "b\r\nX-Injected: 1"},
    {"X-A\r\nX-Injected": "1"},
    {"X A": "1"},
    {"": "1"},
]


@attack
async def webhooks_to_private_addresses(target: Target) -> None:
    async with target.client("manage") as client:

        async def register(target_of: dict[str, object]) -> None:
            body = {"name": "hook", "cron": "@yearly", "target": {"kind": "http", **target_of}}
            response = await client.post("/v1/schedules", json=body)
            assert response.status_code in (400, 413, 422, 429), (str(target_of)[:100], response.status_code)

        await asyncio.gather(*(register({"url": url}) for url in _PRIVATE))
        await asyncio.gather(*(register({"url": "https://example.com/", "headers": headers}) for headers in _HEADERS))

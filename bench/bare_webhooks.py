"""The baseline of webhooks: a loop that sends requests with aiohttp, without anything else. Prints the requests per second."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time

import aiohttp
import uvloop

_BODY = b'{"account":7,"items":[1,2,3]}'


async def _main(urls: list[str], count: int, concurrency: int) -> None:
    numbers = iter(range(count))
    targets = itertools.cycle(urls)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def send() -> None:
            for _ in numbers:
                async with session.post(next(targets), data=_BODY, headers={"content-type": "application/json"}) as response:
                    await response.read()

        started = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(concurrency)))
        print(count / (time.perf_counter() - started))


if __name__ == "__main__":
    uvloop.run(_main(sys.stdin.read().split(), int(sys.argv[1]), int(sys.argv[2])))

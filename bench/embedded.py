"""`python -m bench.embedded`: runs the app of bench.noop in one process with `eb.running()`, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from bench.noop import eb


async def main(concurrency: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with eb.running(concurrency=concurrency):
        await stop.wait()


if __name__ == "__main__":
    run = {"uvloop": uvloop.run, "asyncio": asyncio.run}[sys.argv[1]]
    run(main(int(sys.argv[2])))

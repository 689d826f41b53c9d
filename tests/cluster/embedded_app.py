"""A program that embeds Everbeat with `eb.running()`, as a web app would. Tests start several of them on one database."""

from __future__ import annotations

import asyncio
import signal

from everbeat import Context, Everbeat
from tests.cluster.worker_app import note

eb = Everbeat(name="embedded")


async def _ping(ctx: Context) -> None:
    note("start", ctx)
    await asyncio.sleep(0.1)
    note("end", ctx)


for number in range(5):
    ping = eb.task(name=f"ping-{number}")(_ping)
    eb.cron("* * * * * *", overlap="allow", catch_up="all")(ping)


async def main() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with eb.running(lease_seconds=5, grace_seconds=5):
        await stopping.wait()


if __name__ == "__main__":
    asyncio.run(main())

"""Ends asyncio servers of tests without leaving a connection behind."""

from __future__ import annotations

import asyncio
from typing import Any


async def stop_listening(server: asyncio.Server) -> None:
    """Close the listening socket. When this returns, every accepted connection has reached its protocol.

    asyncio creates the transport of an accepted connection in a task of its own. If the server is closed before that task runs,
    Python 3.11 leaves the socket to the garbage collector, which reports it during a later test. So accepting ends first.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    await asyncio.sleep(0)
    while any(_creates_transport(task) for task in asyncio.all_tasks()):
        await asyncio.sleep(0)
    server.close()


def _creates_transport(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__name__", "") == "_accept_connection2"

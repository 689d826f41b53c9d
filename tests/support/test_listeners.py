from __future__ import annotations

import asyncio
import socket

from tests.support.listeners import stop_listening


async def test_connections_that_were_just_accepted_reach_their_protocol() -> None:
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _reader, writer: writers.append(writer), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with socket.create_connection(address), socket.create_connection(address):
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the loop has accepted both, and creates their transports next
        await stop_listening(server)
        assert len(writers) == 2
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)

"""The webhook receiver: logs each request before it answers. `python -m tests.chaos.receiver FOLDER PORT`.

A file tells it how to answer: `ok`, `errors` (503), `hangs` or `resets`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from datetime import datetime
from pathlib import Path

from tests.chaos.records import Log, log_of_process

_ANSWER = b"HTTP/1.1 %s X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_HANG_SECONDS = 8.0


class Receiver:
    def __init__(self, mode_file: Path, log: Log) -> None:
        self._mode_file = mode_file
        self._log = log

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            await reader.readexactly(int(headers.get("content-length", "0")))
            await self._answer(headers, writer)
        writer.close()

    async def _answer(self, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        mode = self._mode_file.read_text()
        answer = {"ok": 200, "errors": 503}.get(mode, 0)
        tick = headers.get("everbeat-scheduled-for")
        self._log.write(
            "delivery",
            task=headers["everbeat-task"],
            fence=int(headers["everbeat-fence"]),
            attempt=int(headers["everbeat-attempt"]),
            schedule=headers.get("everbeat-schedule"),
            tick=None if tick is None else datetime.fromisoformat(tick).timestamp(),
            message=headers["webhook-id"],
            answer=answer,
        )
        if mode == "hangs":
            await asyncio.sleep(_HANG_SECONDS)
        elif mode == "resets":
            writer.transport.abort()
        else:
            writer.write(_ANSWER % str(answer).encode())
            await writer.drain()


async def _serve(folder: Path, port: int) -> None:
    receiver = Receiver(folder / "receiver-mode", log_of_process(folder / "receiver", "receiver"))
    async with await asyncio.start_server(receiver.serve, "127.0.0.1", port, backlog=512) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))

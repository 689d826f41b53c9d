"""Checks large bodies in other processes, so that no body blocks the event loop, whatever its shape.

There is one process for bodies of up to 1 MiB, and one for larger ones, so that a large body delays only other large ones. Each
is started when it is first needed, and ended after a time without bodies. Bodies wait by key, in rotation: a key with many
bodies delays its own. If a process cannot be started, bodies are checked in a thread, which shares the interpreter with the
event loop; that happens only if this process does not run in a Python interpreter, for example in some application servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec
import structlog

from everbeat.api.json_checker import ANSWER_LENGTH, LENGTHS, READY, OutlineAnswer, OutlineRequest, answer
from everbeat.core.json_text import JsonOutline

IDLE_SECONDS = 60.0
_MEDIUM_BYTES = 1024 * 1024
_ATTEMPTS = 2

log = structlog.get_logger("everbeat.api")


class CheckerFailed(Exception):
    """The checker process ended while it was checking a body."""


class BodyChecks:
    """The checker processes of a node."""

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._medium = _CheckQueue(idle_seconds)
        self._large = _CheckQueue(idle_seconds)

    async def outline(self, raw: bytes, request: OutlineRequest, key: Hashable) -> JsonOutline:
        """Check a body, and return its outline. Raises BadJson, or CheckerFailed."""
        queue = self._medium if len(raw) <= _MEDIUM_BYTES else self._large
        return (await queue.answer(raw, request, key)).outline()

    def close(self) -> None:
        self._medium.close()
        self._large.close()


class _CheckQueue:
    """The bodies that wait for one process, which checks one at a time."""

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._is_busy = False
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._process = _CheckerProcess()
        self._thread: ThreadPoolExecutor | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    async def answer(self, raw: bytes, request: OutlineRequest, key: Hashable) -> OutlineAnswer:
        await self._acquire(key)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="body-checks")
        # The thread waits for the process. If this request is cancelled, the next check begins when the process is done.
        checking = asyncio.get_running_loop().run_in_executor(self._thread, self._process.answer, raw, request)
        checking.add_done_callback(self._next)
        return await asyncio.shield(checking)

    def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._process.kill()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    async def _acquire(self, key: Hashable) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not self._is_busy:
            self._is_busy = True
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._next()
            raise

    def _next(self, done: asyncio.Future[OutlineAnswer] | None = None) -> None:
        """Let the next body begin: that of another key, if one is waiting."""
        if done is not None and not done.cancelled():
            done.exception()  # the request may have been cancelled, and no other code retrieves the exception
        while self._waiting:
            key, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[key] = waiters
            if not waiter.done():
                waiter.set_result(None)
                return
        self._is_busy = False
        self._idle_timer = asyncio.get_running_loop().call_later(self._idle_seconds, self.close)


class _CheckerProcess:
    """The process and its pipes. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._cannot_start = False

    def answer(self, raw: bytes, request: OutlineRequest) -> OutlineAnswer:
        for _ in range(_ATTEMPTS):
            process = self._started()
            if process is None:
                return answer(request, raw)
            try:
                return _exchange(process, raw, request)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.warning("body_checker_failed", error=repr(error))
                self.kill()
        raise CheckerFailed

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _started(self) -> subprocess.Popen[bytes] | None:
        if self._process is None and not self._cannot_start:
            try:
                self._process = _start()
            except OSError as error:
                log.warning("body_checker_not_started", error=str(error), meaning="large bodies are checked in a thread")
                self._cannot_start = True
        return self._process


def _start() -> subprocess.Popen[bytes]:
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "everbeat.api.json_checker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd=package,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        _read(process.stdout, len(READY))
    except OSError:
        _end(process)
        raise
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
    process.wait()


def _exchange(process: subprocess.Popen[bytes], raw: bytes, request: OutlineRequest) -> OutlineAnswer:
    assert process.stdin is not None
    assert process.stdout is not None
    head = msgspec.msgpack.encode(request)
    _write(process.stdin, LENGTHS.pack(len(head), len(raw)) + head)
    _write(process.stdin, raw)
    (length,) = ANSWER_LENGTH.unpack(_read(process.stdout, ANSWER_LENGTH.size))
    return msgspec.msgpack.decode(_read(process.stdout, length), type=OutlineAnswer)


def _write(pipe: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) :]


def _read(pipe: IO[bytes], count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = pipe.read(count - len(parts))
        if not part:
            raise OSError("the checker process ended")
        parts += part
    return bytes(parts)

"""Runs the operations of an app: over HTTP, on a node in this process, or on a node in a background thread.

Callers need not know which thread and event loop the transport belongs to, with one exception: a call that blocks the event
loop on which the transport runs would wait forever, and raises BlockingCall.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol, TypeVar

from everbeat.client.base import Transport
from everbeat.client.blocking_http import BlockingHttpTransport
from everbeat.client.errors import BlockingCall, RegistrationError
from everbeat.client.exchange import RetryBudget
from everbeat.client.http import HttpTransport
from everbeat.client.inprocess import InProcessTransport, LocalNode
from everbeat.client.operations import Operation, run, run_operation_blocking
from everbeat.client.servers import Servers

T = TypeVar("T")

_CLOSING_SECONDS = 10.0


class BoundTransport(NamedTuple):
    """A transport and the event loop it belongs to. `is_local`: the node is in this process."""

    loop: asyncio.AbstractEventLoop
    transport: Transport
    is_local: bool


class OwnedNode(LocalNode, Protocol):
    """A node that was started for this app."""

    async def stop(self) -> None: ...


class Connection(Protocol):
    """Runs operations for sync and async callers. While a transport is attached, operations use it."""

    def run_blocking(self, operation: Operation[T]) -> T: ...

    async def run_async(self, operation: Operation[T]) -> T: ...

    def attach(self, bound: BoundTransport) -> None: ...

    def detach(self) -> None: ...

    def close(self) -> None: ...


class _Attachable:
    def __init__(self) -> None:
        self.bound: BoundTransport | None = None

    def attach(self, bound: BoundTransport) -> None:
        if self.bound is not None:
            raise RegistrationError("this app is already in use: it is running in this process, or a test harness uses it")
        self.bound = bound

    def detach(self) -> None:
        self.bound = None


class HttpConnection(_Attachable):
    """One blocking transport for all threads, and one async transport per event loop. A forked process opens new ones."""

    def __init__(self, url: str | Servers, api_key: str | None, retry_budget: RetryBudget | None = None) -> None:
        super().__init__()
        self.servers = url if isinstance(url, Servers) else Servers(url)
        self._api_key = api_key
        self._retry_budget = retry_budget
        self._lock = threading.Lock()
        self._sync: BlockingHttpTransport | None = None
        self._pid = os.getpid()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopTransport] = weakref.WeakKeyDictionary()

    def run_blocking(self, operation: Operation[T]) -> T:
        if self.bound is not None and self.bound.is_local:
            return _run_from_thread(self.bound, operation)
        with self._lock:
            if self._sync is None or self._pid != os.getpid():
                self._sync, self._pid = (
                    BlockingHttpTransport(self.servers, self._api_key, retry_budget=self._retry_budget),
                    os.getpid(),
                )
            transport = self._sync
        return run_operation_blocking(transport, operation)

    async def run_async(self, operation: Operation[T]) -> T:
        bound = self.bound
        if bound is not None and (bound.is_local or bound.loop is asyncio.get_running_loop()):
            return await _run_from_loop(bound, operation)
        entry = self._by_loop.get(asyncio.get_running_loop())
        return await run(entry.transport if entry is not None else await self._transport(), operation)

    def close(self) -> None:
        with self._lock:
            if self._sync is not None:
                self._sync.close()
                self._sync = None

    async def _transport(self) -> HttpTransport:
        """Return the transport of the running event loop, from a generator that closes it.

        asyncio.run closes suspended async generators before it closes the loop. The generator then closes the transport.
        """
        loop = asyncio.get_running_loop()
        if (entry := self._by_loop.get(loop)) is None:
            generator = self._open_transport(loop)
            entry = self._by_loop[loop] = _LoopTransport(await anext(generator), generator)
        return entry.transport

    async def _open_transport(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[HttpTransport, None]:
        transport = HttpTransport(self.servers, self._api_key, retry_budget=self._retry_budget)
        try:
            yield transport
        finally:
            self._by_loop.pop(loop, None)
            await transport.close()


class _LoopTransport(NamedTuple):
    transport: HttpTransport
    generator: AsyncGenerator[HttpTransport, None]


class NodeConnection(_Attachable):
    """A node in this process: the attached one, or else one without background loops in its own thread, started when needed."""

    def __init__(self, start_node: Callable[[], Awaitable[OwnedNode]]) -> None:
        super().__init__()
        self._start_node = start_node
        self._lock = threading.Lock()
        self._background: BackgroundNode | None = None

    def run_blocking(self, operation: Operation[T]) -> T:
        return _run_from_thread(self.bound or self._background_transport(), operation)

    async def run_async(self, operation: Operation[T]) -> T:
        bound = self.bound
        if bound is None:
            bound = await asyncio.to_thread(self._background_transport)
        return await _run_from_loop(bound, operation)

    def close(self) -> None:
        with self._lock:
            background, self._background = self._background, None
        if background is not None:
            background.close()

    def _background_transport(self) -> BoundTransport:
        with self._lock:
            if self._background is None or self._background.pid != os.getpid():
                self._background = BackgroundNode(self._start_node)
            return self._background.bound


class BackgroundNode:
    """A thread with an event loop and a node. It ends with the process, or when closed."""

    def __init__(self, start_node: Callable[[], Awaitable[OwnedNode]]) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="everbeat-submit", daemon=True)
        self._thread.start()
        self._node: OwnedNode | None = None
        try:
            self.bound = asyncio.run_coroutine_threadsafe(self._open(start_node), self._loop).result()
        except BaseException:
            self._end()
            raise
        atexit.register(self._cancel_at_exit)

    def close(self) -> None:
        self._shut_down(self._stop())

    def _cancel_at_exit(self) -> None:
        """Cancel everything without stopping the node, which would need a new thread: the exiting process cannot start one.

        This is safe, because submitted tasks are already committed.
        """
        self._shut_down(_cancel_all())

    def _shut_down(self, last: Coroutine[Any, Any, None]) -> None:
        atexit.unregister(self._cancel_at_exit)
        if self.pid != os.getpid() or self._loop.is_closed():
            last.close()
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(last, self._loop).result(_CLOSING_SECONDS)
        self._end()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _open(self, start_node: Callable[[], Awaitable[OwnedNode]]) -> BoundTransport:
        self._node = await start_node()
        return BoundTransport(asyncio.get_running_loop(), InProcessTransport(self._node), is_local=True)

    async def _stop(self) -> None:
        await self.bound.transport.close()
        if self._node is not None:
            await self._node.stop()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _run_from_thread(bound: BoundTransport, operation: Operation[T]) -> T:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is bound.loop:
        raise BlockingCall(
            "a blocking call on Everbeat's own event loop would wait forever; "
            "use the async version: await task.submit_async(…), handle.wait_async(…), eb.async_client"
        )
    future = asyncio.run_coroutine_threadsafe(run(bound.transport, operation), bound.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _run_from_loop(bound: BoundTransport, operation: Operation[T]) -> T:
    if asyncio.get_running_loop() is bound.loop:
        return await run(bound.transport, operation)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(bound.transport, operation), bound.loop))

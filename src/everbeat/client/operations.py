"""Operations, written once for sync and async code: generators that yield requests and receive the responses.

An operation does no I/O. `run` runs it on an async transport, and `run_operation_blocking` on a blocking one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from everbeat.client.base import ApiResponse, Transport
from everbeat.client.exchange import Sleep
from everbeat.core.protocol import TaskInput

T = TypeVar("T")


class Call(NamedTuple):
    """A request of the HTTP API. The operation receives its ApiResponse."""

    method: str
    path: str
    query: Mapping[str, Any] | None = None
    body: Any = None
    headers: Mapping[str, str] | None = None


class Submit(NamedTuple):
    """Tasks to submit. The operation receives their ids."""

    tasks: Sequence[TaskInput]


Step = Call | Submit | Sleep
Operation = Generator[Step, Any, T]


class BlockingTransport(Protocol):
    """The interface of a blocking transport."""

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse: ...

    def submit(self, tasks: Sequence[TaskInput]) -> list[UUID]: ...


async def run(transport: Transport, operation: Operation[T]) -> T:
    sent: Any = None
    while True:
        try:
            step = operation.send(sent)
        except StopIteration as done:
            value: T = done.value
            return value
        match step:
            case Call(method, path, query, body, headers):
                sent = await transport.request(method, path, query=query, body=body, headers=headers)
            case Submit(tasks):
                sent = await transport.submit(tasks)
            case Sleep(seconds):
                await asyncio.sleep(seconds)
                sent = None


def run_operation_blocking(transport: BlockingTransport, operation: Operation[T]) -> T:
    sent: Any = None
    while True:
        try:
            step = operation.send(sent)
        except StopIteration as done:
            value: T = done.value
            return value
        match step:
            case Call(method, path, query, body, headers):
                sent = transport.request(method, path, query=query, body=body, headers=headers)
            case Submit(tasks):
                sent = transport.submit(tasks)
            case Sleep(seconds):
                time.sleep(seconds)
                sent = None

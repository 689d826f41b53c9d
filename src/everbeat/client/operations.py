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
from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import TaskInput

T = TypeVar("T")


class Call(NamedTuple):
    """A request of the HTTP API. The operation receives its ApiResponse, or the error if the request is optional."""

    method: str
    path: str
    query: Mapping[str, Any] | None = None
    body: Any = None
    headers: Mapping[str, str] | None = None
    is_optional: bool = False


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
    failure: EverbeatError | None = None
    while True:
        try:
            step = operation.send(sent) if failure is None else operation.throw(failure)
        except StopIteration as done:
            value: T = done.value
            return value
        failure = None
        match step:
            case Call(method, path, query, body, headers, is_optional):
                try:
                    sent = await transport.request(method, path, query=query, body=body, headers=headers)
                except EverbeatError as error:
                    if not is_optional:
                        raise
                    failure = error
            case Submit(tasks):
                sent = await transport.submit(tasks)
            case Sleep(seconds):
                await asyncio.sleep(seconds)
                sent = None


def run_operation_blocking(transport: BlockingTransport, operation: Operation[T]) -> T:
    sent: Any = None
    failure: EverbeatError | None = None
    while True:
        try:
            step = operation.send(sent) if failure is None else operation.throw(failure)
        except StopIteration as done:
            value: T = done.value
            return value
        failure = None
        match step:
            case Call(method, path, query, body, headers, is_optional):
                try:
                    sent = transport.request(method, path, query=query, body=body, headers=headers)
                except EverbeatError as error:
                    if not is_optional:
                        raise
                    failure = error
            case Submit(tasks):
                sent = transport.submit(tasks)
            case Sleep(seconds):
                time.sleep(seconds)
                sent = None

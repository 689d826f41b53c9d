"""The object that a task decorator returns: calling it runs the function, and `submit` submits a task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, overload

import msgspec

from everbeat.client.arguments import bind
from everbeat.client.connections import Connection
from everbeat.client.durations import Duration
from everbeat.client.errors import InvalidArguments
from everbeat.client.handles import TaskHandle
from everbeat.client.operations import Operation, Submit
from everbeat.client.options import (
    SUBMIT_OPTIONS,
    ManyOptions,
    NamedOptions,
    SubmitOptions,
    checked_task_fields,
    reject_unknown,
    submit_fields,
)
from everbeat.client.registry import Registry, TaskDefinition
from everbeat.core.errors import InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.protocol import DEFAULT_QUEUE, TaskInput

# The parameters of the function; the parameters of a submit (without the context); the return type.
FunctionParams = ParamSpec("FunctionParams")
SubmitParams = ParamSpec("SubmitParams")
R = TypeVar("R")

Labels = Mapping[str, str]
KeyOf = Callable[[Mapping[str, Any]], str]


def submit_tasks(connection: Connection, tasks: list[TaskInput]) -> Operation[list[TaskHandle]]:
    ids = (yield Submit(tasks)) if tasks else []
    return [TaskHandle(id_, connection) for id_ in ids]


def submit_task(connection: Connection, task: TaskInput) -> Operation[TaskHandle]:
    (handle,) = yield from submit_tasks(connection, [task])
    return handle


def input_of(task: TaskDefinition, payload: dict[str, Any], options: Mapping[str, Any]) -> TaskInput:
    fields = submit_fields(options)
    return TaskInput(
        type=task.type,
        queue=task.queue,
        payload=payload,
        max_attempts=task.max_attempts,
        retry=task.retry,
        timeout_seconds=task.timeout_seconds,
        **{"priority": task.priority, **fields, "labels": {**task.labels, **fields.get("labels", {})}},
    )


def named_input(registry: Registry, type_: str, payload: Any, options: Mapping[str, Any]) -> TaskInput:
    """Return the input of a task submitted by name. If this app declares the task, its options apply."""
    reject_unknown(options, NamedOptions)
    if not isinstance(type_, str) or not is_name(type_):
        raise InvalidInput.of("type", NAME_MESSAGE)
    known = registry.tasks.get(type_)
    task = input_of(known, payload, {}) if known is not None else TaskInput(type=type_, queue=DEFAULT_QUEUE, payload=payload)
    given = {**checked_task_fields(type_, options), **submit_fields(options)}
    return msgspec.structs.replace(task, **{**given, "labels": {**task.labels, **given.get("labels", {})}})


class Submission(Generic[SubmitParams]):
    """A task with submit options, as in `build_report.options(delay="10m")`. `submit` has the function's parameter types."""

    def __init__(self, definition: TaskDefinition, connection: Connection, options: SubmitOptions) -> None:
        self._definition = definition
        self._connection = connection
        self._options = options

    def submit(self, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> TaskHandle:
        return self._connection.run_blocking(self._operation(args, kwargs))

    async def submit_async(self, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> TaskHandle:
        return await self._connection.run_async(self._operation(args, kwargs))

    def _operation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Operation[TaskHandle]:
        payload = bind(self._definition.type, self._definition.signature, args, kwargs)
        return submit_task(self._connection, input_of(self._definition, payload, self._options))


class Task(Generic[FunctionParams, SubmitParams, R]):
    """A declared task. Calling it runs the function directly; `submit` submits it to a worker."""

    __name__: str

    def __init__(self, function: Callable[FunctionParams, R], definition: TaskDefinition, connection: Connection) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._connection = connection
        self.definition = definition

    @property
    def name(self) -> str:
        return self.definition.type

    def __repr__(self) -> str:
        return f"<task {self.name} on queue {self.definition.queue}>"

    def __call__(self, *args: FunctionParams.args, **kwargs: FunctionParams.kwargs) -> R:
        return self._function(*args, **kwargs)

    def options(
        self,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        key: str | None = None,
        labels: Labels | None = None,
        fair_key: str | None = None,
    ) -> Submission[SubmitParams]:
        """Return the task with submit options. Type checkers fully check `task.options(delay="10m").submit(account=7)`."""
        chosen = SubmitOptions(delay=delay, run_at=run_at, priority=priority, key=key, labels=labels, fair_key=fair_key)
        submit_fields(chosen)
        return Submission(self.definition, self._connection, chosen)

    # One overload for each option that may be the first one present. Without options, a type checker checks the arguments
    # against the function. With options, it cannot, and the arguments are checked when submitting.
    @overload
    def submit(self, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> TaskHandle: ...
    @overload
    def submit(
        self,
        *args: Any,
        delay: Duration,
        priority: int = ...,
        key: str = ...,
        labels: Labels = ...,
        fair_key: str = ...,
        **arguments: Any,
    ) -> TaskHandle: ...
    @overload
    def submit(
        self,
        *args: Any,
        run_at: datetime,
        priority: int = ...,
        key: str = ...,
        labels: Labels = ...,
        fair_key: str = ...,
        **arguments: Any,
    ) -> TaskHandle: ...
    @overload
    def submit(
        self, *args: Any, priority: int, key: str = ..., labels: Labels = ..., fair_key: str = ..., **arguments: Any
    ) -> TaskHandle: ...
    @overload
    def submit(self, *args: Any, key: str, labels: Labels = ..., fair_key: str = ..., **arguments: Any) -> TaskHandle: ...
    @overload
    def submit(self, *args: Any, labels: Labels, fair_key: str = ..., **arguments: Any) -> TaskHandle: ...
    @overload
    def submit(self, *args: Any, fair_key: str, **arguments: Any) -> TaskHandle: ...
    def submit(self, *args: Any, **kwargs: Any) -> TaskHandle:
        """Submit the task. Takes its arguments and the options delay, run_at, priority, key, labels and fair_key."""
        return self._connection.run_blocking(self._operation(args, kwargs))

    @overload
    async def submit_async(self, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> TaskHandle: ...
    @overload
    async def submit_async(
        self,
        *args: Any,
        delay: Duration,
        priority: int = ...,
        key: str = ...,
        labels: Labels = ...,
        fair_key: str = ...,
        **arguments: Any,
    ) -> TaskHandle: ...
    @overload
    async def submit_async(
        self,
        *args: Any,
        run_at: datetime,
        priority: int = ...,
        key: str = ...,
        labels: Labels = ...,
        fair_key: str = ...,
        **arguments: Any,
    ) -> TaskHandle: ...
    @overload
    async def submit_async(
        self, *args: Any, priority: int, key: str = ..., labels: Labels = ..., fair_key: str = ..., **arguments: Any
    ) -> TaskHandle: ...
    @overload
    async def submit_async(
        self, *args: Any, key: str, labels: Labels = ..., fair_key: str = ..., **arguments: Any
    ) -> TaskHandle: ...
    @overload
    async def submit_async(self, *args: Any, labels: Labels, fair_key: str = ..., **arguments: Any) -> TaskHandle: ...
    @overload
    async def submit_async(self, *args: Any, fair_key: str, **arguments: Any) -> TaskHandle: ...
    async def submit_async(self, *args: Any, **kwargs: Any) -> TaskHandle:
        """Like `submit`, without blocking the event loop."""
        return await self._connection.run_async(self._operation(args, kwargs))

    def submit_many(self, items: Iterable[Mapping[str, Any]], *, key: KeyOf | None = None, **options: Any) -> list[TaskHandle]:
        """Submit a task for each item, a dict of arguments. Atomic up to 10,000. `key` returns an item's idempotency key."""
        return self._connection.run_blocking(self._many(items, key, options))

    async def submit_many_async(
        self, items: Iterable[Mapping[str, Any]], *, key: KeyOf | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskHandle]:
        return await self._connection.run_async(self._many(items, key, options))

    def _operation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Operation[TaskHandle]:
        options = {name: kwargs[name] for name in SUBMIT_OPTIONS if name in kwargs}
        arguments = {name: value for name, value in kwargs.items() if name not in options}
        payload = bind(self.name, self.definition.signature, args, arguments)
        return submit_task(self._connection, input_of(self.definition, payload, options))

    def _many(
        self, items: Iterable[Mapping[str, Any]], key: KeyOf | None, options: Mapping[str, Any]
    ) -> Operation[list[TaskHandle]]:
        reject_unknown(options, ManyOptions)
        inputs = []
        for index, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise InvalidArguments(f"{self.name}: item {index} is a {type(item).__name__}, not a dict of arguments")
            payload = bind(f"{self.name}, item {index}", self.definition.signature, (), item)
            keyed = options if key is None else {**options, "key": key(item)}
            inputs.append(input_of(self.definition, payload, keyed))
        return submit_tasks(self._connection, inputs)

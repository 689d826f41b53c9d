"""The object that a task decorator returns: calling it runs the function, and `submit` submits a task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from everbeat.client.annotations import HandlerTypes
from everbeat.client.arguments import bind
from everbeat.client.connections import Connection
from everbeat.client.durations import Duration
from everbeat.client.errors import InvalidArguments
from everbeat.client.handles import Result, TaskHandle
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
from everbeat.client.tracing import current_traceparent
from everbeat.core.errors import InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.protocol import DEFAULT_QUEUE, TaskInput, raw_json

# The parameters of the function; the parameters of a submit (without the context); what a call of the function returns; the
# result of the task, which is what the coroutine returns if the function is async.
FunctionParams = ParamSpec("FunctionParams")
SubmitParams = ParamSpec("SubmitParams")
R = TypeVar("R")

Labels = Mapping[str, str]
KeyOf = Callable[[Mapping[str, Any]], str]


def submit_tasks(
    connection: Connection, tasks: list[TaskInput], types: HandlerTypes | None = None
) -> Operation[list[TaskHandle[Any]]]:
    ids = (yield Submit(tasks)) if tasks else []
    return [TaskHandle(id_, connection, types) for id_ in ids]


def submit_task(connection: Connection, task: TaskInput, types: HandlerTypes | None = None) -> Operation[TaskHandle[Any]]:
    (handle,) = yield from submit_tasks(connection, [task], types)
    return handle


def input_of(task: TaskDefinition, payload: dict[str, Any], options: Mapping[str, Any]) -> TaskInput:
    fields: dict[str, Any] = {"priority": task.priority, "labels": task.labels}
    if options:
        given = submit_fields(options)
        fields |= {**given, "labels": {**task.labels, **given.get("labels", {})}}
    return TaskInput(
        type=task.type,
        queue=task.queue,
        payload=raw_json(payload),
        max_attempts=task.max_attempts,
        retry=task.retry,
        timeout_seconds=task.timeout_seconds,
        hooks=task.hooks,
        traceparent=current_traceparent(),
        **fields,
    )


def named_input(registry: Registry, type_: str, payload: Any, options: Mapping[str, Any]) -> TaskInput:
    """Return the input of a task submitted by name. If this app declares the task, its options apply."""
    reject_unknown(options, NamedOptions)
    if not isinstance(type_, str) or not is_name(type_):
        raise InvalidInput.of("type", NAME_MESSAGE)
    known = registry.tasks.get(type_)
    unknown = TaskInput(type=type_, queue=DEFAULT_QUEUE, payload=raw_json(payload), traceparent=current_traceparent())
    task = unknown if known is None else input_of(known, payload, {})
    given = {**checked_task_fields(type_, options), **submit_fields(options)}
    return msgspec.structs.replace(task, **{**given, "labels": {**task.labels, **given.get("labels", {})}})


class Submission(Generic[SubmitParams, Result]):
    """A task with submit options, as in `build_report.options(delay="10m")`. `submit` has the function's parameter types."""

    def __init__(self, definition: TaskDefinition, connection: Connection, options: SubmitOptions) -> None:
        self._definition = definition
        self._connection = connection
        self._options = options

    def submit(self, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> TaskHandle[Result]:
        handle: TaskHandle[Result] = self._connection.run_blocking(self._operation(args, kwargs))
        return handle

    async def submit_async(self, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> TaskHandle[Result]:
        handle: TaskHandle[Result] = await self._connection.run_async(self._operation(args, kwargs))
        return handle

    def _operation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Operation[TaskHandle[Any]]:
        task = self._definition
        payload = bind(task.type, task.signature, args, kwargs, task.types.parameters)
        return submit_task(self._connection, input_of(task, payload, self._options), task.types)

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            raise _no_attribute(self, name)


class Task(Generic[FunctionParams, SubmitParams, R, Result]):
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
    ) -> Submission[SubmitParams, Result]:
        """Return the task with submit options. Type checkers fully check `task.options(delay="10m").submit(account=7)`."""
        chosen = SubmitOptions(delay=delay, run_at=run_at, priority=priority, key=key, labels=labels, fair_key=fair_key)
        submit_fields(chosen)
        return Submission(self.definition, self._connection, chosen)

    def submit(self, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> TaskHandle[Result]:
        """Submit the task with these arguments. For options, use `task.options(delay="10m").submit(…)`.

        Options can also be passed here, but a type checker refuses them: it cannot distinguish them from arguments.
        """
        handle: TaskHandle[Result] = self._connection.run_blocking(self._operation(args, kwargs))
        return handle

    async def submit_async(self, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> TaskHandle[Result]:
        """Like `submit`, without blocking the event loop."""
        handle: TaskHandle[Result] = await self._connection.run_async(self._operation(args, kwargs))
        return handle

    def submit_many(
        self, items: Iterable[Mapping[str, Any]], *, key: KeyOf | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskHandle[Result]]:
        """Submit a task for each item, a dict of arguments. Atomic up to 10,000. `key` returns an item's idempotency key."""
        return self._connection.run_blocking(self._many(items, key, options))

    async def submit_many_async(
        self, items: Iterable[Mapping[str, Any]], *, key: KeyOf | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskHandle[Result]]:
        return await self._connection.run_async(self._many(items, key, options))

    def _operation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Operation[TaskHandle[Any]]:
        task = self.definition
        options = {name: kwargs[name] for name in SUBMIT_OPTIONS if name in kwargs}
        arguments = {name: value for name, value in kwargs.items() if name not in options}
        payload = bind(self.name, task.signature, args, arguments, task.types.parameters)
        return submit_task(self._connection, input_of(task, payload, options), task.types)

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            raise _no_attribute(self, name)

    def _many(
        self, items: Iterable[Mapping[str, Any]], key: KeyOf | None, options: Mapping[str, Any]
    ) -> Operation[list[TaskHandle[Any]]]:
        reject_unknown(options, ManyOptions)
        task = self.definition
        inputs = []
        for index, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise InvalidArguments(f"{self.name}: item {index} is a {type(item).__name__}, not a dict of arguments")
            payload = bind(f"{self.name}, item {index}", task.signature, (), item, task.types.parameters)
            keyed = options if key is None else {**options, "key": key(item)}
            inputs.append(input_of(task, payload, keyed))
        return submit_tasks(self._connection, inputs, task.types)


# The names of other task queues, and what to write instead.
_OTHER_NAMES = {
    "delay": "submit(…)",
    "apply_async": "options(delay=…, priority=…, key=…).submit(…)",
    "send": "submit(…)",
    "send_with_options": "options(delay=…, priority=…, key=…).submit(…)",
    "enqueue": "submit(…)",
    "schedule": "options(run_at=…).submit(…)",
    "s": "submit(…)",
    "si": "submit(…)",
    "apply": "submit(…).wait()",
    "kiq": "submit_async(…)",
    "kicker": "options(…).submit_async(…)",
}


def _no_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that does not exist, with a hint if it is the name of another task queue."""
    instead = _OTHER_NAMES.get(name)
    hint = "" if instead is None else f"; to submit it to a worker, use .{instead}, or its async version with await"
    return AttributeError(f"{type(owner).__name__} has no attribute {name}{hint}", name=name, obj=owner)

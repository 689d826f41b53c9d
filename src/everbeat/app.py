"""The app: declares tasks and schedules with decorators, submits and registers them, and can run them in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from everbeat.client.api import AsyncMode, BlockingMode, Client
from everbeat.client.arguments import to_json_value
from everbeat.client.base import Transport
from everbeat.client.connections import BoundTransport, Connection, HttpConnection, NodeConnection, OwnedNode
from everbeat.client.declarations import check_hook, define_schedule, define_task
from everbeat.client.durations import Duration, seconds_of
from everbeat.client.errors import RegistrationError
from everbeat.client.exchange import RetryBudget
from everbeat.client.handles import Result, TaskHandle
from everbeat.client.http import HttpTransport
from everbeat.client.inprocess import InProcessTransport
from everbeat.client.operations import Operation
from everbeat.client.options import TASK_OPTIONS, NamedOptions, ScheduleOptions, TaskOptions
from everbeat.client.registration import Registration, register_schedules
from everbeat.client.registry import Hook, Registry
from everbeat.client.servers import Servers
from everbeat.client.tasks import Task, named_input, submit_task
from everbeat.client.urls import DEFAULT_URL, is_server, validate_urls
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.protocol import DEFAULT_LEASE_SECONDS
from everbeat.logs import set_library_level
from everbeat.worker.context import Context

DEFAULT_NAME = "everbeat"

SubmitParams = ParamSpec("SubmitParams")
FunctionParams = ParamSpec("FunctionParams")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
H = TypeVar("H", bound=Callable[..., Any])


_EXAMPLES = {
    "cron": '@eb.cron("0 2 * * *")',
    "every_seconds": '@eb.every("30s")',
    "rrule": '@eb.rrule("FREQ=DAILY")',
    "at": '@eb.at("2027-01-31T09:00:00Z")',
}


class WithContext(Protocol[SubmitParams, R_co]):
    """A function whose first parameter is named ctx."""

    def __call__(self, ctx: Context, *args: SubmitParams.args, **kwargs: SubmitParams.kwargs) -> R_co: ...


class Decorator(Protocol):
    """Turns a function into a task. Returns a task unchanged."""

    # A task is also a callable, but the first overload that matches is used.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Task[FunctionParams, SubmitParams, R, Result], /
    ) -> Task[FunctionParams, SubmitParams, R, Result]: ...
    @overload
    def __call__(
        self, function: WithContext[SubmitParams, Coroutine[Any, Any, Result]], /
    ) -> Task[Concatenate[Context, SubmitParams], SubmitParams, Coroutine[Any, Any, Result], Result]: ...
    @overload
    def __call__(
        self, function: WithContext[SubmitParams, R], /
    ) -> Task[Concatenate[Context, SubmitParams], SubmitParams, R, R]: ...
    @overload
    def __call__(
        self, function: Callable[SubmitParams, Coroutine[Any, Any, Result]], /
    ) -> Task[SubmitParams, SubmitParams, Coroutine[Any, Any, Result], Result]: ...
    @overload
    def __call__(self, function: Callable[SubmitParams, R], /) -> Task[SubmitParams, SubmitParams, R, R]: ...


class Everbeat:
    """An app. `url` is a server, or a database on which to run in this process. The default is EVERBEAT_URL.

    Several servers of a cluster can be given as a list, or separated by commas: if one does not respond, the next one is used.

    Schedules are registered with the `name` of the app, so that schedules it no longer declares can be pruned.
    `patience` is how long a call is retried while the server does not respond.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        name: str = DEFAULT_NAME,
        api_key: str | None = None,
        patience: Duration = 30.0,
    ) -> None:
        self.url = validate_urls(url if url is not None else os.environ.get("EVERBEAT_URL") or DEFAULT_URL)
        if not is_name(name):
            raise RegistrationError(f"the app's name {name!r} {NAME_MESSAGE}")
        self.name = name
        self.registry = Registry(app=name)
        self._api_key = api_key if api_key is not None else os.environ.get("EVERBEAT_API_KEY") or None
        self._connection: Connection
        self._servers = Servers(self.url) if is_server(self.url) else None
        if self._servers is not None:
            self._connection = HttpConnection(self._servers, self._api_key, RetryBudget(seconds_of(patience, "patience")))
        else:
            self._connection = NodeConnection(lambda: _start_node(self.url, ()))
        self.client: Client[BlockingMode] = Client(self._connection, BlockingMode)
        self.async_client: Client[AsyncMode] = Client(self._connection, AsyncMode)
        self._is_running = False

    def __repr__(self) -> str:
        return f"<Everbeat {self.name}: {len(self.registry.tasks)} tasks, {len(self.registry.schedules)} schedules>"

    # Declaring

    @overload
    def task(
        self, function: WithContext[SubmitParams, Coroutine[Any, Any, Result]], /
    ) -> Task[Concatenate[Context, SubmitParams], SubmitParams, Coroutine[Any, Any, Result], Result]: ...
    @overload
    def task(
        self, function: WithContext[SubmitParams, R], /
    ) -> Task[Concatenate[Context, SubmitParams], SubmitParams, R, R]: ...
    @overload
    def task(
        self, function: Callable[SubmitParams, Coroutine[Any, Any, Result]], /
    ) -> Task[SubmitParams, SubmitParams, Coroutine[Any, Any, Result], Result]: ...
    @overload
    def task(self, function: Callable[SubmitParams, R], /) -> Task[SubmitParams, SubmitParams, R, R]: ...
    @overload
    def task(self, *, name: str | None = None, **options: Unpack[TaskOptions]) -> Decorator: ...
    def task(self, *function: Any, name: str | None = None, **options: Any) -> Any:
        """Declare a task. The default name is that of the function. Can be used with and without parentheses."""

        def declare(function: Any) -> Task[..., ..., Any, Any]:
            if isinstance(function, Task):
                raise RegistrationError(f"{function.name} is already a task; put @eb.task below @eb.cron, next to the function")
            return self._declare(function, name, options)

        return declare(*function) if function else declare

    def cron(self, expression: str, **options: Unpack[ScheduleOptions]) -> Decorator:
        """Schedule the function by a cron expression: `@eb.cron("0 2 * * *", tz="America/New_York")`."""
        return self._schedule({"cron": expression}, options)

    def every(
        self, interval: Duration, *, anchor: datetime | str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Decorator:
        """Schedule the function at a fixed interval of elapsed time: `@eb.every("30s")`."""
        return self._schedule({"every_seconds": interval, "anchor": anchor}, options)

    def rrule(self, rule: str, *, anchor: datetime | str | None = None, **options: Unpack[ScheduleOptions]) -> Decorator:
        """Schedule the function by a recurrence rule of RFC 5545."""
        return self._schedule({"rrule": rule, "anchor": anchor}, options)

    def at(self, when: datetime | str, **options: Unpack[ScheduleOptions]) -> Decorator:
        """Schedule the function once, at this time."""
        return self._schedule({"at": when}, options)

    def before(self, hook: H) -> H:
        """Add a hook that is called before each handler: before(ctx)."""
        return self._add_hook(self.registry.before, hook, "ctx")

    def after(self, hook: H) -> H:
        """Add a hook that is called after each handler that returned: after(ctx, result)."""
        return self._add_hook(self.registry.after, hook, "ctx", "result")

    def on_error(self, hook: H) -> H:
        """Add a hook that is called after each handler that raised: on_error(ctx, error)."""
        return self._add_hook(self.registry.on_error, hook, "ctx", "error")

    def _declare(self, function: Callable[..., Any], name: str | None, options: Mapping[str, Any]) -> Task[..., ..., Any, Any]:
        definition = define_task(function, name, options)
        self.registry.add_task(definition)
        return Task(function, definition, self._connection)

    def _schedule(self, trigger: Mapping[str, Any], options: Mapping[str, Any]) -> Decorator:
        kind, rule = next(iter(trigger.items()))
        if callable(rule):
            raise RegistrationError(f"the decorator needs an argument, as in {_EXAMPLES[kind]}")

        def declare(function: Any) -> Task[..., ..., Any, Any]:
            task = function
            if not isinstance(function, Task):
                task_options = {option: options[option] for option in TASK_OPTIONS if option in options}
                task = self._declare(function, None, task_options)
            elif self.registry.tasks.get(function.name) is not function.definition:
                raise RegistrationError(f"{function.name} is a task of another app; declare its schedules there")
            definition = define_schedule(self.name, task.definition, trigger, options)
            self.registry.add_schedule(definition, task.definition.location)
            return cast(Task[..., ..., Any, Any], task)

        return cast(Decorator, declare)

    def _add_hook(self, hooks: list[Hook], hook: H, *arguments: str) -> H:
        check_hook(hook, arguments)
        hooks.append(hook)
        return hook

    # Submitting by name

    def submit(self, type: str, payload: Mapping[str, Any] | None = None, **options: Unpack[NamedOptions]) -> TaskHandle[Any]:
        """Submit a task by name, without its code. Takes the options of a task and of submit."""
        return self._connection.run_blocking(self._submit_by_name(type, payload, options))

    async def submit_async(
        self, type: str, payload: Mapping[str, Any] | None = None, **options: Unpack[NamedOptions]
    ) -> TaskHandle[Any]:
        return await self._connection.run_async(self._submit_by_name(type, payload, options))

    def _submit_by_name(self, type_: str, payload: Any, options: Mapping[str, Any]) -> Operation[TaskHandle[Any]]:
        arguments = to_json_value({} if payload is None else payload, f"{type_}: the payload")
        task = named_input(self.registry, type_, arguments, options)
        known = self.registry.tasks.get(type_)
        return submit_task(self._connection, task, None if known is None else known.types)

    # Registering

    def register(self, *, prune: bool = False) -> Registration:
        """Register the declared schedules on the server. `prune` deletes those of this app that are no longer declared."""
        return self._connection.run_blocking(self._register_operation(prune))

    async def register_async(self, *, prune: bool = False) -> Registration:
        return await self._connection.run_async(self._register_operation(prune))

    def _register_operation(self, prune: bool) -> Operation[Registration]:
        if prune and self.name == DEFAULT_NAME:
            raise RegistrationError(
                "an app with the default name cannot prune: it would delete the schedules of other apps; "
                'set a name, as in Everbeat(name="billing"), and register once before pruning'
            )
        return register_schedules(self.registry, prune=prune)

    # Running

    @contextlib.asynccontextmanager
    async def running(
        self,
        *,
        concurrency: int = 50,
        queues: Sequence[str] | None = None,
        worker: bool = True,
        register: bool = True,
        prune: bool = False,
        grace_seconds: float = 30.0,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        log_level: str | None = None,
    ) -> AsyncIterator[Everbeat]:
        """Run the app in this process until the end of the block.

        If the URL is a database, this starts a scheduler and a worker. Several such processes can share one database;
        together they fire each tick once. If the URL is a server, this starts a worker. `log_level` is the level of the logger
        `everbeat`; by default EVERBEAT_LOG_LEVEL, and otherwise as the process has configured it.
        """
        if (level := log_level or os.environ.get("EVERBEAT_LOG_LEVEL")) is not None:
            set_library_level(level)
        if self._is_running:
            raise RegistrationError("this app is already running in this process")
        self._is_running = True
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(setattr, self, "_is_running", False)
            transport = await self._connect(stack)
            stack.enter_context(self.attached(transport))
            if register and (self.registry.schedules or prune):
                await self.register_async(prune=prune)
            if worker and self.registry.tasks:
                await self._start_worker(stack, transport, queues, concurrency, grace_seconds, lease_seconds)
            yield self

    @contextlib.contextmanager
    def attached(self, transport: Transport) -> Iterator[None]:
        """Use this transport, which belongs to the running event loop, for submits until the end of the block."""
        is_local = not isinstance(transport, HttpTransport)
        with self.placed(BoundTransport(asyncio.get_running_loop(), transport, is_local)):
            yield

    @contextlib.contextmanager
    def placed(self, bound: BoundTransport) -> Iterator[None]:
        """Like `attached`, for a transport of any event loop."""
        self._connection.attach(bound)
        try:
            yield
        finally:
            self._connection.detach()

    def http_transport(self) -> HttpTransport:
        """Return a transport to the server of this app, for a worker. The caller closes it."""
        if self._servers is None:
            raise RegistrationError(f"{self.url.partition('://')[0]} is a database, not a server; use async with eb.running()")
        return HttpTransport(self._servers, self._api_key)

    async def _connect(self, stack: contextlib.AsyncExitStack) -> Transport:
        transport: Transport
        if is_server(self.url):
            transport = self.http_transport()
        else:
            node = await _start_node(self.url, ("api", "scheduler"))
            stack.push_async_callback(node.stop)
            transport = InProcessTransport(node)
        await transport.open()
        stack.push_async_callback(transport.close)
        return transport

    async def _start_worker(
        self,
        stack: contextlib.AsyncExitStack,
        transport: Transport,
        queues: Sequence[str] | None,
        concurrency: int,
        grace_seconds: float,
        lease_seconds: float,
    ) -> None:
        from everbeat.worker.runtime import Worker

        worker = Worker(
            self.registry,
            transport,
            queues=queues,
            concurrency=concurrency,
            grace_seconds=grace_seconds,
            lease_seconds=lease_seconds,
        )
        await worker.start()
        stack.push_async_callback(worker.stop)

    def close(self) -> None:
        """Close the connections of sync calls. Later calls open new connections."""
        self._connection.close()


async def _start_node(url: str, roles: tuple[str, ...]) -> OwnedNode:
    """Start a node in this process with these roles. The imports are local because producers over HTTP do not need them."""
    import msgspec

    from everbeat.config import load_settings
    from everbeat.server import EmbeddedNode

    settings = load_settings({"database_url": url, "host": "127.0.0.1", "roles": "api,scheduler"})
    node = EmbeddedNode(msgspec.structs.replace(settings, roles=roles))
    await node.start()
    return cast(OwnedNode, node)

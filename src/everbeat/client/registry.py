"""The declarations of an app: tasks, schedules and hooks. Decorators add them; workers and clients read them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from everbeat.client.annotations import HandlerTypes
from everbeat.client.errors import RegistrationError
from everbeat.core.hooks import NO_HOOKS, Hooks
from everbeat.core.schedules import Retry


def _undefined() -> None:
    """The handler of a definition without types, in tests and for unknown tasks."""


ExceptionKinds = tuple[type[BaseException], ...]


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """The handler of a task type, with its options. `wants_context`: its first parameter is ctx, which `signature` omits."""

    type: str
    queue: str
    function: Callable[..., Any]
    is_async: bool
    wants_context: bool
    max_attempts: int = 3
    priority: int = 100
    timeout_seconds: float = 3600
    retry: Retry = field(default_factory=Retry)
    labels: dict[str, str] = field(default_factory=dict)
    hooks: Hooks = NO_HOOKS
    # Exceptions that are not retried: the task becomes a dead letter immediately.
    non_retryable: ExceptionKinds = ()
    signature: inspect.Signature = field(default_factory=inspect.Signature)
    types: HandlerTypes = field(default_factory=lambda: HandlerTypes(_undefined, inspect.Signature()))
    # File and line. Distinguishes two declarations with the same name from one declaration imported twice.
    location: str = ""


Hook = Callable[..., Awaitable[None] | None]


@dataclass(kw_only=True)
class Registry:
    """Tasks by type, schedule definitions by name, and hooks in the order in which they were added.

    The hooks are before(ctx), after(ctx, result) and on_error(ctx, error). Each may be sync or async.
    """

    app: str = "everbeat"
    tasks: dict[str, TaskDefinition] = field(default_factory=dict)
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: list[Hook] = field(default_factory=list)
    after: list[Hook] = field(default_factory=list)
    on_error: list[Hook] = field(default_factory=list)
    _scheduled_at: dict[str, str] = field(default_factory=dict)

    def queues(self) -> list[str]:
        return sorted({task.queue for task in self.tasks.values()})

    def add_task(self, task: TaskDefinition) -> None:
        """Add a task. It replaces a task with the same location (a module imported twice); another location is an error."""
        known = self.tasks.get(task.type)
        if known is not None and (known.location != task.location or not task.location):
            raise RegistrationError(
                f'two tasks are named "{task.type}": at {known.location or "an unknown location"} and at {task.location}; '
                f'rename one of them, as in @eb.task(name="…")'
            )
        if known is not None:
            self._remove_schedules(task)
        self.tasks[task.type] = task

    def add_schedule(self, definition: dict[str, Any], location: str) -> None:
        name = definition["name"]
        if name in self.schedules:
            raise RegistrationError(
                f'two schedules are named "{name}": at {self._scheduled_at[name]} and at {location}; '
                f'rename one of them, as in name="{name}-2"'
            )
        self._scheduled_at[name] = location
        self.schedules[name] = definition

    def _remove_schedules(self, task: TaskDefinition) -> None:
        for name, definition in list(self.schedules.items()):
            if definition["target"]["type"] == task.type and self._scheduled_at.get(name) == task.location:
                del self.schedules[name], self._scheduled_at[name]

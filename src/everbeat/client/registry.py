"""What an app has declared: its tasks, its schedules, its hooks. Filled by the decorators, read by workers and clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from everbeat.core.schedules import Retry


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """A function that handles tasks of one type. `arguments` checks keyword arguments; `wants_context`: ctx comes first."""

    type: str
    queue: str
    function: Callable[..., Any]
    is_async: bool
    wants_context: bool
    max_attempts: int = 3
    priority: int = 100
    timeout_seconds: float = 3600
    retry: Retry = Retry()
    labels: dict[str, str] = field(default_factory=dict)
    # Exceptions that must not be retried; raised by a handler they go to the dead letters at once.
    non_retryable: tuple[type[BaseException], ...] = ()


Hook = Callable[..., Awaitable[None] | None]


@dataclass(kw_only=True)
class Registry:
    """Tasks by type; schedules by name as definitions of API.md; hooks in the order they were added.

    Hooks: before(ctx), after(ctx, result), on_error(ctx, error); each may be sync or async.
    """

    app: str = "everbeat"
    tasks: dict[str, TaskDefinition] = field(default_factory=dict)
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: list[Hook] = field(default_factory=list)
    after: list[Hook] = field(default_factory=list)
    on_error: list[Hook] = field(default_factory=list)

    def queues(self) -> list[str]:
        return sorted({task.queue for task in self.tasks.values()})

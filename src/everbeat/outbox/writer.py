"""Submits tasks in the application's transaction. Nothing is sent here: the application's commit makes the task exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack
from uuid import UUID, uuid4

import msgspec

from everbeat.app import Everbeat
from everbeat.client.arguments import bind, to_json_value
from everbeat.client.options import NamedOptions
from everbeat.client.registry import Registry
from everbeat.client.tasks import Task, named_input
from everbeat.core.errors import InvalidInput
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.submissions import new_task
from everbeat.outbox.statements import execute, execute_async

MAX_ORDER_KEY_CHARACTERS = 1000

AnyTask = Task[..., ..., Any, Any]


class Outbox:
    """Adds tasks to the table `everbeat_outbox` of the application's database. `everbeat relay` submits them.

    With an app, the options of its declared tasks apply to tasks that are submitted by name.
    """

    def __init__(self, app: Everbeat | None = None) -> None:
        self._registry = Registry() if app is None else app.registry

    def submit(
        self,
        connection: Any,
        task: str | AnyTask,
        payload: Mapping[str, Any] | None = None,
        *,
        order_key: str | None = None,
        **options: Unpack[NamedOptions],
    ) -> UUID:
        """Add a task in the current transaction of a sync connection. Returns the id of the row.

        Tasks with the same `order_key` are created in the order in which they were added.
        """
        id_, values = self._row(task, payload, order_key, options)
        execute(connection, "outbox_insert", values)
        return id_

    async def submit_async(
        self,
        connection: Any,
        task: str | AnyTask,
        payload: Mapping[str, Any] | None = None,
        *,
        order_key: str | None = None,
        **options: Unpack[NamedOptions],
    ) -> UUID:
        """Add a task in the current transaction of an async connection. Returns the id of the row."""
        id_, values = self._row(task, payload, order_key, options)
        await execute_async(connection, "outbox_insert", values)
        return id_

    def _row(
        self, task: str | AnyTask, payload: Mapping[str, Any] | None, order_key: str | None, options: Mapping[str, Any]
    ) -> tuple[UUID, dict[str, Any]]:
        if options.get("key") is not None:
            raise InvalidInput.of("key", "cannot be used with an outbox: the id of the row is the idempotency key")
        if order_key is not None and not 1 <= len(order_key) <= MAX_ORDER_KEY_CHARACTERS:
            raise InvalidInput.of("order_key", f"must have 1 to {MAX_ORDER_KEY_CHARACTERS} characters")
        id_ = uuid4()
        # As text, because drivers differ in whether they accept a UUID.
        return id_, {"id": str(id_), "order_key": order_key, "task": _encoded(self._registry, task, payload, options)}


class SharedDatabase:
    """Writes tasks directly into the PostgreSQL database of Everbeat, if it is also that of the application."""

    def __init__(self, app: Everbeat | None = None, *, tenant: str = "default") -> None:
        self._registry = Registry() if app is None else app.registry
        self._tenant = tenant

    def submit(
        self,
        connection: Any,
        task: str | AnyTask,
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[NamedOptions],
    ) -> UUID:
        """Write a task in the current transaction of a sync connection. Returns the id of the task."""
        values = self._values(task, payload, options)
        return _uuid(execute(connection, "outbox_enqueue", values))

    async def submit_async(
        self,
        connection: Any,
        task: str | AnyTask,
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[NamedOptions],
    ) -> UUID:
        """Write a task in the current transaction of an async connection. Returns the id of the task."""
        values = self._values(task, payload, options)
        return _uuid(await execute_async(connection, "outbox_enqueue", values))

    def _values(self, task: str | AnyTask, payload: Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"tenant": self._tenant, "task": _encoded(self._registry, task, payload, options)}


def _encoded(registry: Registry, task: str | AnyTask, payload: Mapping[str, Any] | None, options: Mapping[str, Any]) -> str:
    """Return the task as JSON. It is validated now, because the relay could only move an invalid one aside."""
    given = _input(registry, task, {} if payload is None else payload, options)
    new_task(given, uuid4(), DEFAULT_TENANT, key=given.idempotency_key)
    return msgspec.json.encode(given).decode()


def _input(registry: Registry, task: str | AnyTask, payload: Mapping[str, Any], options: Mapping[str, Any]) -> TaskInput:
    if isinstance(task, str):
        return named_input(registry, task, to_json_value(payload, f"{task}: the payload"), options)
    definition = task.definition
    arguments = bind(definition.type, definition.signature, (), payload)
    return named_input(Registry(tasks={definition.type: definition}), definition.type, arguments, options)


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))

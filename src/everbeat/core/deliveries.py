"""Deliveries: the attempts of tasks whose target is not a worker. What a destination answered, and the headers of messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.definitions import rfc3339
from everbeat.core.targets import Target
from everbeat.core.tasks import Origin
from everbeat.core.webhooks import EndpointRequest

MAX_RESPONSE_BODY_BYTES = 4096


class DeliveryResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What the destination answered to an attempt; kept with the attempt.

    `status`, `size` and `body` (the first 4 KiB, as text) are those of an HTTP response. `message_id` is the id that a broker
    has given to the message. `detail`: other facts of the kind, such as a partition and an offset.
    """

    duration_ms: float
    status: int | None = None
    size: int | None = None
    body: str | None = None
    message_id: str | None = None
    detail: dict[str, Any] = {}


class DeliveryTask(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed task, as it is passed to its target.

    `payload` is JSON. `timeout_seconds`: how long the delivery may take; the deliverer enforces it. `callback_url` and
    `callback_token` are None if the server has no public URL.
    """

    id: UUID
    tenant_id: UUID
    target: Target
    type: str
    payload: bytes
    attempt: int
    max_attempts: int
    fence: int
    schedule: str | None
    schedule_id: UUID | None
    scheduled_for: datetime | None
    origin: Origin
    timeout_seconds: float
    traceparent: str | None = None
    callback_url: str | None = None
    callback_token: str | None = None
    # How the named endpoint of an http target is called.
    endpoint: EndpointRequest | None = None

    @property
    def message_id(self) -> str:
        """The id of the message. It is the same for all attempts, so that a receiver or a broker can remove duplicates."""
        return str(self.id)


def message_headers(task: DeliveryTask) -> dict[str, str]:
    """Return the headers that every message carries, whatever the kind of its target."""
    headers = {
        "everbeat-task": str(task.id),
        "everbeat-type": task.type,
        "everbeat-attempt": str(task.attempt),
        "everbeat-fence": str(task.fence),
        "everbeat-origin": task.origin.value,
    }
    if task.schedule is not None:
        headers["everbeat-schedule"] = task.schedule
    if task.scheduled_for is not None:
        headers["everbeat-scheduled-for"] = rfc3339(task.scheduled_for)
    if task.traceparent is not None:
        headers["traceparent"] = task.traceparent
    return headers

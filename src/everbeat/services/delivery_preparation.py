"""Prepares deliveries: reads the named endpoints of http targets, and makes callback tokens. Targets use no database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from everbeat.core.broker_targets import CeleryTarget
from everbeat.core.deliveries import DeliveryTask
from everbeat.core.endpoints import WebhookEndpoint
from everbeat.core.targets import HttpTarget, Target
from everbeat.core.tasks import ClaimedTask
from everbeat.delivery.base import DestinationLimits, Refused, RetryDelivery
from everbeat.services.callbacks import CallbackKey
from everbeat.services.deliverer import PreparedDelivery, prepared
from everbeat.store.base import Store

EndpointKey = tuple[UUID, str]


class WebhookPreparation:
    """`callback_url`: the address of this server for callbacks, if it has one. `max_concurrent`: the default of endpoints.

    `may_use`: whether a tenant may use a broker connection.
    """

    def __init__(
        self,
        store: Store,
        key: CallbackKey,
        *,
        callback_url: str | None,
        max_concurrent: int,
        may_use: Callable[[UUID, str], bool] = lambda _tenant_id, _broker: True,
    ) -> None:
        self._store = store
        self._may_use = may_use
        self._key = key
        self._callback_url = callback_url
        self._max_concurrent = max_concurrent

    async def prepare(self, tasks: Sequence[tuple[ClaimedTask, Target]]) -> list[PreparedDelivery]:
        wanted = {key for task, target in tasks if (key := _endpoint_of(task, target)) is not None}
        endpoints: Mapping[EndpointKey, WebhookEndpoint] = {}
        now = None
        if wanted:
            endpoints = await self._find(list(wanted))
            now = await self._store.clock()
        return [await self._prepare(task, target, endpoints, now) for task, target in tasks]

    async def endpoint_limits(self, endpoints: Sequence[EndpointKey]) -> Mapping[EndpointKey, DestinationLimits]:
        found = await self._find(endpoints)
        return {key: self._limits(found.get(key)) for key in endpoints}

    async def _find(self, keys: Sequence[EndpointKey]) -> dict[EndpointKey, WebhookEndpoint]:
        return {(one.tenant_id, one.name): one for one in await self._store.endpoint_find(keys)}

    def _limits(self, endpoint: WebhookEndpoint | None) -> DestinationLimits:
        if endpoint is None:
            return DestinationLimits(self._max_concurrent)
        return DestinationLimits(endpoint.max_concurrent or self._max_concurrent, endpoint.rate_per_second)

    async def _prepare(
        self, task: ClaimedTask, target: Target, endpoints: Mapping[EndpointKey, WebhookEndpoint], now: datetime | None
    ) -> PreparedDelivery:
        plain = prepared(task, target)
        broker = getattr(target, "broker", None)
        if broker is not None and not self._may_use(task.tenant_id, broker):
            # The settings have changed since the task was created. They may change again, so it is not refused.
            why = f'the tenant may not use the broker "{broker}"'
            return plain._replace(refusal=RetryDelivery(None, why, "not-allowed", blames_destination=False))
        if isinstance(target, CeleryTarget) and target.mode != "sync" and self._callback_url is not None:
            return plain._replace(task=await self._with_callback(task, plain.task, self._callback_url))
        if not isinstance(target, HttpTarget):
            return plain
        key = _endpoint_of(task, target)
        endpoint = None if key is None else endpoints.get(key)
        limits = None if key is None else self._limits(endpoint)
        if key is not None and endpoint is None:
            refusal = Refused(f'there is no endpoint named "{target.endpoint}"', "endpoint-missing")
            return plain._replace(refusal=refusal, limits=limits)
        delivery = plain.task
        if endpoint is not None and now is not None:
            delivery = msgspec.structs.replace(delivery, endpoint=endpoint.request(now))
        if target.mode == "callback":
            if self._callback_url is None:
                refusal = Refused("callbacks need the setting public_url of the server", "callback-url-missing")
                return plain._replace(refusal=refusal, limits=limits)
            delivery = await self._with_callback(task, delivery, self._callback_url)
        return plain._replace(task=delivery, limits=limits)

    async def _with_callback(self, task: ClaimedTask, delivery: DeliveryTask, base_url: str) -> DeliveryTask:
        token = await self._key.token(task.tenant_id, task.id, task.fence)
        url = f"{base_url}/v1/callbacks/{task.id}"
        return msgspec.structs.replace(delivery, callback_url=url, callback_token=token)


def _endpoint_of(task: ClaimedTask, target: Target) -> EndpointKey | None:
    if isinstance(target, HttpTarget) and target.endpoint is not None:
        return task.tenant_id, target.endpoint
    return None

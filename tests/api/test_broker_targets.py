"""Tasks with targets at brokers: which connections a tenant may use, and what a target may contain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from everbeat.api.app import ApiContext, Health
from everbeat.clock import DatabaseClock
from everbeat.config import Settings
from everbeat.core.brokers import Broker
from everbeat.engine import Engine
from everbeat.store.base import Store
from tests.api.conftest import make_client

BROKERS = {
    "open": Broker(name="open", kind="kafka"),
    "shop": Broker(name="shop", kind="kafka", tenants=frozenset({"shop"})),
    "celery": Broker(name="celery", kind="celery"),
}


@pytest.fixture
async def client(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    async def ready() -> Health:
        return Health(True, {})

    engine = Engine(store, DatabaseClock(), Settings(brokers=BROKERS, host="0.0.0.0"))
    await engine.directory.run_once()
    context = ApiContext.from_engine(engine, health=lambda: Health(True, {}), ready=ready, metrics=lambda: b"")
    async with make_client(context) as made:
        yield made


async def errors(client: httpx.AsyncClient, **target: Any) -> list[tuple[str, str]]:
    response = await client.post("/v1/tasks", json={"type": "t", "target": target})
    assert response.status_code in (201, 422), response.text
    return [(one["field"], one["message"]) for one in response.json().get("errors", [])] if response.is_error else []


async def test_a_tenant_uses_the_connections_of_all_tenants_and_its_own(client: httpx.AsyncClient) -> None:
    assert await errors(client, kind="kafka", topic="t", broker="open") == []
    refused = [("target.broker", 'no broker named "shop" is configured on this server for this tenant')]
    assert await errors(client, kind="kafka", topic="t", broker="shop") == refused


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ({"kind": "kafka", "broker": "open", "topic": "a b"}, "target.topic"),
        ({"kind": "kafka", "broker": "open", "topic": "t", "key": "a\x00"}, "target.key"),
        ({"kind": "kafka", "broker": "open", "topic": "t", "headers": {"Everbeat-Task": "x"}}, "target.headers"),
        ({"kind": "kafka", "broker": "open", "topic": "t", "headers": {"x": "a\r\nb"}}, "target.headers"),
        ({"kind": "celery", "broker": "celery", "task": "t", "mode": "callback"}, "target.mode"),
    ],
)
async def test_a_target_that_cannot_be_delivered_is_refused(
    client: httpx.AsyncClient, target: dict[str, Any], field: str
) -> None:
    assert [found for found, _ in await errors(client, **target)] == [field]

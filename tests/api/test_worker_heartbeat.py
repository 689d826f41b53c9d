"""POST /v1/worker/heartbeat."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.store.base import Store
from tests.api.conftest import (
    ON_BOTH_STORES,
    claim,
    claim_expired,
    complete,
    fields_of,
    foreign_lease,
    lease,
    read,
    report,
    submit,
)


async def heartbeat(client: httpx.AsyncClient, *leases: dict[str, Any]) -> list[dict[str, Any]]:
    return await report(client, "heartbeat", "leases", *leases)


@ON_BOTH_STORES
async def test_it_renews_the_lease(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    (renewed,) = await heartbeat(client, lease(claimed))

    assert (renewed["id"], renewed["status"]) == (claimed["id"], "ok")
    assert renewed["lease_until"] > claimed["lease_until"]
    assert (await read(client, task))["lease_until"] == renewed["lease_until"]


@ON_BOTH_STORES
async def test_it_never_renews_beyond_the_timeout(client: httpx.AsyncClient) -> None:
    await submit(client, timeout_seconds=7)
    (claimed,) = await claim(client, lease_seconds=30)
    (renewed,) = await heartbeat(client, lease(claimed))

    assert renewed["lease_until"] == claimed["lease_until"]


@ON_BOTH_STORES
async def test_progress_is_kept_until_it_changes(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    await heartbeat(client, lease(claimed, progress={"fraction": 0.5}))
    await heartbeat(client, lease(claimed, progress={"message": "half way"}))
    await heartbeat(client, lease(claimed))

    assert (await read(client, task))["progress"] == {"fraction": 0.5, "message": "half way"}


@ON_BOTH_STORES
async def test_a_message_that_no_database_can_store_does_not_lose_the_lease(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    (renewed,) = await heartbeat(client, lease(claimed, progress={"message": "a\x00b"}))

    assert renewed["status"] == "ok"
    assert (await read(client, task))["progress"]["message"] == "a\N{REPLACEMENT CHARACTER}b"


@ON_BOTH_STORES
async def test_invalid_leases_are_lost_and_the_others_are_renewed(
    client: httpx.AsyncClient, context: ApiContext, store: Store
) -> None:
    await submit(client)
    (expired,) = await claim_expired(context)
    await submit(client)
    (claimed,) = await claim(client)
    await submit(client)
    (done,) = await claim(client)
    await complete(client, done)
    leases = [
        {"id": str(uuid4()), "fence": 1},
        lease(claimed, fence=claimed["fence"] + 1),
        await foreign_lease(store),
        lease(done),
        expired,
        lease(claimed),
    ]

    responses = await heartbeat(client, *leases)
    assert [response["id"] for response in responses] == [one["id"] for one in leases]
    assert [response["status"] for response in responses] == ["lost"] * 5 + ["ok"]
    assert [response["lease_until"] is None for response in responses] == [True] * 5 + [False]


@ON_BOTH_STORES
async def test_a_heartbeat_without_leases_is_valid(client: httpx.AsyncClient) -> None:
    assert await heartbeat(client) == []


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"id": "x"}, "leases[1].id"),
        ({"id": 5}, "leases[1].id"),
        ({"id": ...}, "leases[1].id"),
        ({"fence": "1"}, "leases[1].fence"),
        ({"fence": -1}, "leases[1].fence"),
        ({"fence": 2**63}, "leases[1].fence"),
        ({"fence": 1.5}, "leases[1].fence"),
        ({"fence": ...}, "leases[1].fence"),
        ({"progress": {"fraction": 1.1}}, "leases[1].progress.fraction"),
        ({"progress": {"fraction": -0.1}}, "leases[1].progress.fraction"),
        ({"progress": {"message": "x" * 2001}}, "leases[1].progress.message"),
        ({"progress": 0.5}, "leases[1].progress"),
        ({"log": ["x"]}, "leases[1].log"),
        ({"color": "red"}, "leases[1].color"),
    ],
)
async def test_an_invalid_item_is_named(client: httpx.AsyncClient, wrong: dict[str, Any], field: str) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    item = {key: value for key, value in lease(claimed, **wrong).items() if value is not ...}
    body = {"worker": "w1", "leases": [lease(claimed, progress={"fraction": 0.1}), item]}

    assert fields_of(await client.post("/v1/worker/heartbeat", json=body)) == [field]
    assert (await read(client, task))["progress"] is None


@ON_BOTH_STORES
async def test_a_heartbeat_may_have_a_thousand_leases(client: httpx.AsyncClient) -> None:
    leases = [{"id": str(uuid4()), "fence": 1}] * 1001

    assert fields_of(await client.post("/v1/worker/heartbeat", json={"worker": "w", "leases": leases})) == ["leases"]
    assert len(await heartbeat(client, *leases[:1000])) == 1000

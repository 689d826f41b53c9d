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


async def beat(client: httpx.AsyncClient, *leases: dict[str, Any]) -> list[dict[str, Any]]:
    return await report(client, "heartbeat", "leases", *leases)


@ON_BOTH_STORES
async def test_it_renews_the_lease(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (held,) = await claim(client)
    (answer,) = await beat(client, lease(held))

    assert (answer["id"], answer["status"]) == (held["id"], "ok")
    assert answer["lease_until"] > held["lease_until"]
    assert (await read(client, task))["lease_until"] == answer["lease_until"]


@ON_BOTH_STORES
async def test_it_never_renews_beyond_the_timeout(client: httpx.AsyncClient) -> None:
    await submit(client, timeout_seconds=7)
    (held,) = await claim(client, lease_seconds=30)
    (answer,) = await beat(client, lease(held))

    assert answer["lease_until"] == held["lease_until"]


@ON_BOTH_STORES
async def test_progress_stays_until_there_is_other(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (held,) = await claim(client)
    await beat(client, lease(held, progress={"fraction": 0.5}))
    await beat(client, lease(held, progress={"message": "half way"}))
    await beat(client, lease(held))

    assert (await read(client, task))["progress"] == {"fraction": 0.5, "message": "half way"}


@ON_BOTH_STORES
async def test_a_message_that_no_database_takes_costs_no_lease(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (held,) = await claim(client)
    (answer,) = await beat(client, lease(held, progress={"message": "a\x00b"}))

    assert answer["status"] == "ok"
    assert (await read(client, task))["progress"]["message"] == "a\N{REPLACEMENT CHARACTER}b"


@ON_BOTH_STORES
async def test_what_is_not_ours_is_lost_and_the_rest_is_renewed(
    client: httpx.AsyncClient, context: ApiContext, store: Store
) -> None:
    await submit(client)
    (expired,) = await claim_expired(context)
    await submit(client)
    (held,) = await claim(client)
    await submit(client)
    (done,) = await claim(client)
    await complete(client, done)
    leases = [
        {"id": str(uuid4()), "fence": 1},
        lease(held, fence=held["fence"] + 1),
        await foreign_lease(store),
        lease(done),
        expired,
        lease(held),
    ]

    answers = await beat(client, *leases)
    assert [answer["id"] for answer in answers] == [one["id"] for one in leases]
    assert [answer["status"] for answer in answers] == ["lost"] * 5 + ["ok"]
    assert [answer["lease_until"] is None for answer in answers] == [True] * 5 + [False]


@ON_BOTH_STORES
async def test_no_leases_are_no_fault(client: httpx.AsyncClient) -> None:
    assert await beat(client) == []


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
        ({"colour": "red"}, "leases[1].colour"),
    ],
)
async def test_it_names_the_item_that_is_wrong(client: httpx.AsyncClient, wrong: dict[str, Any], field: str) -> None:
    task = await submit(client)
    (held,) = await claim(client)
    item = {key: value for key, value in lease(held, **wrong).items() if value is not ...}
    body = {"worker": "w1", "leases": [lease(held, progress={"fraction": 0.1}), item]}

    assert fields_of(await client.post("/v1/worker/heartbeat", json=body)) == [field]
    assert (await read(client, task))["progress"] is None


@ON_BOTH_STORES
async def test_a_thousand_leases_at_most(client: httpx.AsyncClient) -> None:
    leases = [{"id": str(uuid4()), "fence": 1}] * 1001

    assert fields_of(await client.post("/v1/worker/heartbeat", json={"worker": "w", "leases": leases})) == ["leases"]
    assert len(await beat(client, *leases[:1000])) == 1000

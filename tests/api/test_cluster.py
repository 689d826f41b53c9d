"""GET /v1/cluster."""

from __future__ import annotations

from uuid import uuid4

import httpx

from everbeat.api.app import ApiContext
from everbeat.store.values import NodeHeartbeat
from tests.api.conftest import definition, fields_of


async def test_a_server_without_a_node_owns_nothing(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/cluster")).json()

    assert answer["nodes"] == []
    assert answer["unowned"] == len(answer["partitions"]) == 256
    assert answer["lag_seconds"] is None
    assert answer["rates"] == {"ticks_fired_per_second": 0.0}


async def test_it_shows_nodes_and_what_they_own(client: httpx.AsyncClient, context: ApiContext) -> None:
    node = uuid4()
    beat = NodeHeartbeat(node, "one", ("api", "scheduler"), "1.2.3", 60.0, lag_seconds=0.25, fired_per_second=12.5)
    await context.store.partition_renew(beat, frozenset({0, 7}))
    answer = (await client.get("/v1/cluster")).json()

    (shown,) = answer["nodes"]
    assert (shown["id"], shown["name"], shown["version"]) == (str(node), "one", "1.2.3")
    assert (shown["roles"], shown["is_alive"], shown["partitions"]) == (["api", "scheduler"], True, 2)
    owned = [one for one in answer["partitions"] if one["owner"] == str(node)]
    assert [one["partition"] for one in owned] == [0, 7]
    assert all(one["epoch"] >= 1 and one["lease_until"] > answer["now"] for one in owned)
    assert answer["unowned"] == 254
    assert answer["lag_seconds"] == 0.25
    assert answer["rates"]["ticks_fired_per_second"] == 12.5


async def test_it_counts_schedules_by_status(client: httpx.AsyncClient) -> None:
    schedules = [definition(name="a"), definition(name="b"), definition(name="c", enabled=False)]
    await client.post("/v1/schedules/batch", json={"schedules": schedules})
    answer = (await client.get("/v1/cluster")).json()

    assert answer["schedules"]["active"] == 2
    assert answer["schedules"]["paused"] == 1
    assert answer["faulty"] == 0
    assert answer["queues"] == []


async def test_it_rejects_an_unknown_parameter(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.get("/v1/cluster?verbose=1")) == ["verbose"]

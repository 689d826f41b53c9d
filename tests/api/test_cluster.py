"""GET /v1/cluster."""

from __future__ import annotations

from uuid import uuid4

import httpx

from everbeat.api.app import ApiContext
from everbeat.core.capacity_advice import CapacityFacts
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.values import NodeHeartbeat
from tests.api.conftest import definition, fields_of


async def test_without_a_scheduler_node_no_partition_is_owned(client: httpx.AsyncClient) -> None:
    content = (await client.get("/v1/cluster")).json()

    assert content["nodes"] == []
    assert content["unowned"] == len(content["partitions"]) == 256
    assert content["lag_seconds"] is None
    assert content["rates"] == {"ticks_fired_per_second": 0.0}


async def test_it_shows_nodes_and_what_they_own(client: httpx.AsyncClient, context: ApiContext) -> None:
    node = uuid4()
    heartbeat = NodeHeartbeat(node, "one", ("api", "scheduler"), "1.2.3", 60.0, lag_seconds=0.25, fired_per_second=12.5)
    await context.store.partition_renew(heartbeat, frozenset({0, 7}))
    content = (await client.get("/v1/cluster")).json()

    (shown,) = content["nodes"]
    assert (shown["id"], shown["name"], shown["version"]) == (str(node), "one", "1.2.3")
    assert (shown["roles"], shown["is_alive"], shown["partitions"]) == (["api", "scheduler"], True, 2)
    owned = [one for one in content["partitions"] if one["owner"] == str(node)]
    assert [one["partition"] for one in owned] == [0, 7]
    assert all(one["epoch"] >= 1 and one["lease_until"] > content["now"] for one in owned)
    assert content["unowned"] == 254
    assert content["lag_seconds"] == 0.25
    assert content["rates"]["ticks_fired_per_second"] == 12.5


async def test_it_counts_schedules_by_status(client: httpx.AsyncClient) -> None:
    schedules = [definition(name="a"), definition(name="b"), definition(name="c", enabled=False)]
    await client.post("/v1/schedules/batch", json={"schedules": schedules})
    content = (await client.get("/v1/cluster")).json()

    assert content["schedules"]["active"] == 2
    assert content["schedules"]["paused"] == 1
    assert content["faulty"] == 0
    assert content["queues"] == []


async def test_it_rejects_an_unknown_parameter(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.get("/v1/cluster?verbose=1")) == ["verbose"]


async def test_it_shows_the_busiest_second_ahead_and_how_full_the_tables_are(client: httpx.AsyncClient) -> None:
    schedules = [definition(name=f"noon-{number}", cron="0 12 * * *") for number in range(3)]
    schedules.append(definition(name="later", cron="30 13 * * *"))
    await client.post("/v1/schedules/batch", json={"schedules": schedules})
    capacity = (await client.get("/v1/cluster")).json()["capacity"]

    busiest = capacity["busiest_second"]
    assert busiest["at"][11:19] == "12:00:00"
    assert (busiest["ticks"], busiest["schedules"], busiest["is_complete"]) == (3, ["noon-0", "noon-1", "noon-2"], True)
    assert capacity["database_bytes"] > 0
    assert capacity["advice"] == []


async def test_a_key_without_admin_scope_sees_no_tables(client: httpx.AsyncClient, context: ApiContext) -> None:
    view = await context.cluster.view(DEFAULT_TENANT)
    facts = await context.capacity.facts(view, DEFAULT_TENANT, for_operator=False)
    assert facts == CapacityFacts(None, [], [], None, [])
    assert (await context.capacity.facts(view, DEFAULT_TENANT, for_operator=True)).database_bytes is not None

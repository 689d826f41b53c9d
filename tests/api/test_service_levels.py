"""GET /v1/slo."""

from __future__ import annotations

from uuid import UUID

import httpx

from everbeat.api.app import ApiContext
from everbeat.core.definitions import rfc3339
from everbeat.core.service_levels import LevelBucket, bucket_of
from tests.api.conftest import ON_BOTH_STORES, fields_of


async def test_without_counts_nothing_is_known(client: httpx.AsyncClient) -> None:
    content = (await client.get("/v1/slo")).json()
    assert (content["since"], content["window_days"]) == (None, 30)
    assert [one["name"] for one in content["objectives"]] == ["fire", "pickup", "availability", "success"]
    assert {one["status"] for one in content["objectives"]} == {"no_data"}
    assert content["objectives"][0] == {
        "name": "fire",
        "target": 0.999,
        "threshold_seconds": 1.0,
        "status": "no_data",
        "good": 0,
        "total": 0,
        "ratio": None,
        "budget_left": None,
        "burn_rates": {"5m": None, "1h": None, "6h": None, "30d": None},
    }


@ON_BOTH_STORES
async def test_it_shows_what_is_left_of_the_budgets(client: httpx.AsyncClient, context: ApiContext) -> None:
    at = bucket_of(await context.store.clock())
    counts = LevelBucket(at, fire_good=9995, fire_total=10_000, success_good=90, success_total=100)
    for node in (1, 2):
        await context.store.service_level_write(UUID(int=node), [counts])
    content = (await client.get("/v1/slo")).json()
    fire, pickup, _, success = content["objectives"]
    assert (fire["good"], fire["total"], fire["ratio"], fire["status"]) == (19_990, 20_000, 0.9995, "ok")
    assert round(fire["budget_left"], 6) == 0.5
    assert round(fire["burn_rates"]["5m"], 6) == round(fire["burn_rates"]["30d"], 6) == 0.5
    assert pickup["status"] == "no_data"
    assert (success["status"], round(success["budget_left"], 6)) == ("exhausted", -9.0)
    assert content["since"] == rfc3339(at)


async def test_it_has_no_parameters(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.get("/v1/slo?window=1h")) == ["window"]

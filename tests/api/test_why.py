"""GET /v1/schedules/{ref}/why."""

from __future__ import annotations

import httpx

from tests.api.conftest import definition, fields_of, problem_of


async def test_it_returns_a_verdict_an_explanation_and_facts(client: httpx.AsyncClient) -> None:
    created = (await client.post("/v1/schedules", json=definition())).json()
    for ref in (created["id"], "nightly"):
        response = await client.get(f"/v1/schedules/{ref}/why", params={"at": created["next_tick_at"]})
        assert response.status_code == 200
        why = response.json()
        assert why["verdict"] == "upcoming"
        assert why["explanation"].startswith("It will run at ")
        assert {"fact": "at", "value": created["next_tick_at"]} in why["facts"]


async def test_the_default_is_the_latest_expected_tick_or_the_first_one(client: httpx.AsyncClient) -> None:
    created = (await client.post("/v1/schedules", json=definition())).json()
    why = (await client.get("/v1/schedules/nightly/why")).json()
    assert why["verdict"] == "upcoming"
    assert {"fact": "at", "value": created["next_tick_at"]} in why["facts"]


async def test_facts_have_links_that_work(client: httpx.AsyncClient) -> None:
    task = (await client.post("/v1/tasks", json={"type": "x", "queue": "nobody"})).json()
    why = (await client.get(f"/v1/tasks/{task['id']}/why")).json()
    assert why["explanation"].startswith("It has been ready for ")
    links = [fact["link"] for fact in why["facts"] if "link" in fact]
    assert f"/v1/tasks/{task['id']}/attempts" in links
    await client.post("/v1/schedules", json=definition())
    between = (await client.get("/v1/schedules/nightly/why", params={"at": "2031-01-01T00:00:01Z"})).json()
    assert between["verdict"] == "not_scheduled"
    links += [fact["link"] for fact in between["facts"] if "link" in fact]
    assert len(links) >= 4
    assert [(await client.get(link)).status_code for link in links] == [200] * len(links)


async def test_a_time_without_offset_is_refused(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=definition())
    assert fields_of(await client.get("/v1/schedules/nightly/why?at=2026-01-01T00:00:00")) == ["at"]
    assert fields_of(await client.get("/v1/schedules/nightly/why?since=now")) == ["since"]


async def test_an_unknown_schedule_is_not_found(client: httpx.AsyncClient) -> None:
    problem_of(await client.get("/v1/schedules/unknown/why"), 404)

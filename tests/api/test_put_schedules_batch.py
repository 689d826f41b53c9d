"""POST /v1/schedules/batch."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import definition, fields_of, message_of


def batch(*names: str, **changed: Any) -> dict[str, Any]:
    return {"schedules": [definition(name=name, **changed) for name in names]}


async def test_it_returns_the_status_of_each_schedule(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules/batch", json=batch("a", "b"))
    changed = {"schedules": [definition(name="b", priority=1), definition(name="a"), definition(name="c")]}
    response = await client.post("/v1/schedules/batch", json=changed)

    assert response.status_code == 200
    items = response.json()["items"]
    assert [(item["name"], item["status"]) for item in items] == [("b", "updated"), ("a", "unchanged"), ("c", "created")]
    assert items[0]["id"] == (await client.get("/v1/schedules/b")).json()["id"]


async def test_it_accepts_a_thousand_schedules(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules/batch", json=batch(*(f"s{number}" for number in range(1000))))

    assert {item["status"] for item in response.json()["items"]} == {"created"}
    assert len(response.json()["items"]) == 1000


async def test_it_rejects_more_than_a_thousand_schedules_and_none(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.post("/v1/schedules/batch", json={"schedules": []})) == ["schedules"]
    too_many = batch(*(f"s{number}" for number in range(1001)))
    assert fields_of(await client.post("/v1/schedules/batch", json=too_many)) == ["schedules"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"cron": "99 * * * *"}, "cron"),
        ({"target": {"kind": "worker"}}, "target.type"),
        ({"color": "red"}, "color"),
        ({"payload": "x" * 70_000}, "payload"),
        ({"name": "good"}, "name"),
    ],
)
async def test_one_bad_item_is_named_and_none_is_written(client: httpx.AsyncClient, wrong: dict[str, Any], field: str) -> None:
    items = [definition(name="good"), definition(**wrong), definition(name="also-good")]
    response = await client.post("/v1/schedules/batch", json={"schedules": items})

    assert fields_of(response) == [f"schedules[1].{field}"]
    assert (await client.get("/v1/schedules")).json()["items"] == []


async def test_an_item_that_is_not_an_object_is_named(client: httpx.AsyncClient) -> None:
    fields = fields_of(await client.post("/v1/schedules/batch", json={"schedules": [definition(), None, 5]}))

    assert [field.partition(".")[0] for field in fields] == ["schedules[1]", "schedules[2]"]


async def test_every_bad_item_is_named(client: httpx.AsyncClient) -> None:
    items = [definition(name=f"s{number}", priority=-1) for number in range(5)]

    fields = fields_of(await client.post("/v1/schedules/batch", json={"schedules": items}))
    assert fields == [f"schedules[{number}].priority" for number in range(5)]


async def test_a_batch_of_one_names_its_item_too(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules/batch", json=batch("a", calendars={"exclude": ["nowhere"]}))

    assert fields_of(response) == ["schedules[0].calendars.exclude"]


async def test_it_rejects_an_unknown_field_next_to_the_schedules(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.post("/v1/schedules/batch", json={**batch("a"), "dry_run": True})) == ["dry_run"]
    assert message_of(await client.post("/v1/schedules/batch", json={}), "schedules") == "is required"


@pytest.mark.parametrize("body", [[], {"schedules": {}}, {"schedules": None}])
async def test_it_rejects_an_invalid_body(client: httpx.AsyncClient, body: Any) -> None:
    assert len(fields_of(await client.post("/v1/schedules/batch", json=body))) == 1


async def test_a_repeated_batch_changes_nothing(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/schedules/batch", json=batch("a"))
    second = await client.post("/v1/schedules/batch", json=batch("a"))

    assert [item["id"] for item in second.json()["items"]] == [item["id"] for item in first.json()["items"]]
    assert second.json()["items"][0]["status"] == "unchanged"
    assert fields_of(await client.post("/v1/schedules/batch", json=batch("a"), headers={"Idempotency-Key": "a b"})) == [
        "Idempotency-Key"
    ]

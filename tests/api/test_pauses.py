"""POST /v1/queues/{queue}/pause and /resume, POST /v1/pause and /v1/resume, GET /v1/pauses."""

from __future__ import annotations

import httpx
import pytest

from tests.api.conftest import claim, fields_of, submit

LATER = "2999-01-01T00:00:00.000000Z"


async def test_a_queue_is_paused_listed_and_resumed(client: httpx.AsyncClient) -> None:
    paused = await client.post("/v1/queues/reports/pause", json={"note": "deploy", "until": LATER})
    assert paused.status_code == 200, paused.text
    body = paused.json()
    assert (body["scope"], body["queue"], body["note"], body["until"]) == ("queue", "reports", "deploy", LATER)
    assert (await client.get("/v1/pauses")).json() == {"items": [body], "next_cursor": None}
    (queue,) = (await client.get("/v1/queues")).json()["items"]
    expected = {name: body[name] for name in ("by", "note", "since", "until", "scope")}
    assert (queue["queue"], queue["paused"]) == ("reports", expected)
    resumed = await client.post("/v1/queues/reports/resume")
    assert [one["id"] for one in resumed.json()["ended"]] == [body["id"]]
    assert (await client.get("/v1/pauses")).json()["items"] == []
    assert (await client.post("/v1/queues/reports/resume")).json() == {"ended": []}


async def test_a_pause_of_the_tenant_covers_its_queues(client: httpx.AsyncClient) -> None:
    await submit(client)
    assert (await client.post("/v1/pause", json={"note": "maintenance"})).json()["scope"] == "tenant"
    assert await claim(client) == []
    (queue,) = (await client.get("/v1/queues")).json()["items"]
    assert (queue["paused"]["scope"], queue["paused"]["note"]) == ("tenant", "maintenance")
    assert len((await client.post("/v1/resume")).json()["ended"]) == 1
    assert len(await claim(client)) == 1


async def test_everything_is_paused_with_all_tenants(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/pause", json={"all_tenants": True})).json()["scope"] == "all"
    assert (await client.post("/v1/resume")).json() == {"ended": []}
    assert len((await client.post("/v1/resume", json={"all_tenants": True})).json()["ended"]) == 1


async def test_pausing_again_changes_the_note_and_keeps_the_beginning(client: httpx.AsyncClient) -> None:
    first = (await client.post("/v1/pause", json={"note": "one", "until": LATER})).json()
    second = (await client.post("/v1/pause", json={"note": "two"})).json()
    assert (second["id"], second["since"], second["note"], second["until"]) == (first["id"], first["since"], "two", None)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/pause", {"until": "2020-01-01T00:00:00Z"}, "until"),
        ("/v1/pause", {"until": "2999-01-01T00:00:00"}, "until"),
        ("/v1/pause", {"note": "x" * 1001}, "note"),
        ("/v1/pause", {"reason": "x"}, "reason"),
        ("/v1/queues/a%20b/pause", {}, "queue"),
        ("/v1/queues/a/resume", {"note": "x"}, "note"),
    ],
)
async def test_bad_input_is_refused(client: httpx.AsyncClient, path: str, body: dict[str, object], field: str) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == 422
    assert fields_of(response) == [field]


async def test_pauses_are_in_the_audit_log(client: httpx.AsyncClient) -> None:
    await client.post("/v1/queues/reports/pause", json={"note": "deploy"})
    await client.post("/v1/queues/reports/resume")
    entries = (await client.get("/v1/audit-log")).json()["items"]
    assert [(one["action"], one["subject"]) for one in entries] == [("pause.end", "reports"), ("pause.begin", "reports")]
    assert entries[1]["detail"]["note"] == "deploy"

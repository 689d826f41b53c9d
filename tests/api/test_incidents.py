"""GET /v1/incidents, GET /v1/incidents/{id} and POST /v1/incidents/{id}/acknowledge."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from everbeat.core.alerts import AlertKind
from everbeat.core.incidents import Incident, IncidentResolution, IncidentState
from everbeat.store.base import Store
from tests.api.conftest import ON_BOTH_STORES, fields_of, problem_of
from tests.contract.test_alerts import evaluation, make_incident, make_rule
from tests.factories import NOW, minutes

OVER: dict[str, Any] = {"state": IncidentState.RESOLVED, "resolution": IncidentResolution.RECOVERED, "pending": None}


@pytest.fixture
async def incidents(store: Store) -> list[Incident]:
    """Incidents, newest first."""
    await store.alert_write(make_rule(), expected=None)
    made = [
        make_incident("schedule:1", schedule_id=UUID(int=3), kind=AlertKind.DEADLINE, opened_at=NOW),
        make_incident("type:default/work", opened_at=NOW - minutes(1)),
        make_incident("queue:a", alert="ages", task_id=None, kind=AlertKind.QUEUE_AGE, opened_at=NOW - minutes(2)),
        make_incident("queue:b", opened_at=NOW - minutes(3), resolved_at=NOW, **OVER),
    ]
    assert await store.alert_apply(await evaluation(store, opened=made), now=NOW)
    return made


@ON_BOTH_STORES
async def test_the_list_has_every_incident_once_newest_first(client: httpx.AsyncClient, incidents: list[Incident]) -> None:
    first = (await client.get("/v1/incidents?limit=3")).json()
    rest = (await client.get("/v1/incidents", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [item["id"] for item in first["items"] + rest["items"]] == [str(one.id) for one in incidents]
    assert rest["next_cursor"] is None


async def test_an_incident_says_what_happened_and_links_to_why(client: httpx.AsyncClient, incidents: list[Incident]) -> None:
    response = await client.get(f"/v1/incidents/{incidents[0].id}")
    found = response.json()
    assert (found["kind"], found["summary"], found["details"], found["count"]) == (
        *("deadline", 'it said "no", ü', {"error": "no"}),
        1,
    )
    assert found["link"] == f"/v1/incidents/{found['id']}"
    assert found["why"] == f"/v1/schedules/{UUID(int=3)}/why?at=2026-03-02T12%3A00%3A00.000000Z"
    whys = [item["why"] for item in (await client.get("/v1/incidents")).json()["items"]]
    assert whys[1:3] == [f"/v1/tasks/{UUID(int=5)}/why", None]


async def test_the_list_can_be_filtered(client: httpx.AsyncClient, incidents: list[Incident]) -> None:
    async def ids(query: str) -> list[str]:
        return [item["id"] for item in (await client.get(f"/v1/incidents?{query}")).json()["items"]]

    assert await ids("state=resolved") == [str(incidents[3].id)]
    assert await ids("state=open&alert=ages") == [str(incidents[2].id)]
    assert await ids("state=acknowledged") == []
    assert fields_of(await client.get("/v1/incidents?state=closed")) == ["state"]
    assert fields_of(await client.get("/v1/incidents?alert=a%20b")) == ["alert"]


@ON_BOTH_STORES
async def test_an_incident_is_acknowledged_once(client: httpx.AsyncClient, incidents: list[Incident]) -> None:
    path = f"/v1/incidents/{incidents[0].id}/acknowledge"
    first = (await client.post(path, json={"note": "disk full"})).json()
    assert (first["state"], first["note"]) == ("acknowledged", "disk full")
    assert first["acknowledged_by"]
    again = await client.post(path, json={"note": "other"})
    assert (again.status_code, again.json()) == (200, first)
    assert (await client.get("/v1/incidents?state=acknowledged")).json()["items"] == [first]
    entries = (await client.get("/v1/audit-log")).json()["items"]
    assert [(one["action"], one["subject"]) for one in entries] == [("incident.acknowledge", first["id"])]


async def test_acknowledging_needs_no_body(client: httpx.AsyncClient, incidents: list[Incident]) -> None:
    assert (await client.post(f"/v1/incidents/{incidents[0].id}/acknowledge")).status_code == 200


async def test_a_resolved_incident_cannot_be_acknowledged(client: httpx.AsyncClient, incidents: list[Incident]) -> None:
    problem_of(await client.post(f"/v1/incidents/{incidents[3].id}/acknowledge", json={}), 409)


async def test_unknown_incidents_are_not_found(client: httpx.AsyncClient) -> None:
    for id_ in (str(UUID(int=9)), "nonsense"):
        problem_of(await client.get(f"/v1/incidents/{id_}"), 404)
        problem_of(await client.post(f"/v1/incidents/{id_}/acknowledge", json={}), 404)


async def test_a_wrong_note_is_refused(client: httpx.AsyncClient, incidents: list[Incident]) -> None:
    path = f"/v1/incidents/{incidents[0].id}/acknowledge"
    for note in ("a\u0000b", "x" * 1001):
        assert fields_of(await client.post(path, json={"note": note})) == ["note"]

"""GET /v1/alerts, GET, PUT, DELETE /v1/alerts/{name}."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from everbeat.core.alerts import MAX_ALERTS
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.api.conftest import ON_BOTH_STORES, fields_of, message_of, problem_of

HTTP = {"kind": "http", "url": "https://example.org/alerts", "headers": {"X-Token": "confidential"}}
SLACK = {"kind": "slack", "url": "https://hooks.example.org/services/confidential"}
RULE: dict[str, Any] = {"when": {"kind": "dead"}, "notify": [HTTP]}


async def put(client: httpx.AsyncClient, name: str = "failures", **more: Any) -> httpx.Response:
    return await client.put(f"/v1/alerts/{name}", json={**RULE, **more})


@ON_BOTH_STORES
async def test_a_rule_is_created_read_replaced_and_removed(client: httpx.AsyncClient) -> None:
    response = await put(client, match={"label": "team=a"}, remind_seconds=600)
    assert response.status_code == 201
    assert (response.headers["location"], response.headers["etag"]) == ("/v1/alerts/failures", '"1"')
    created = response.json()
    assert (created["when"], created["match"]["label"]) == ({"kind": "dead"}, "team=a")
    assert (created["group_seconds"], created["notify_resolved"], created["enabled"]) == (60, True, True)
    assert (await client.get("/v1/alerts/failures")).json() == created
    assert (await client.get("/v1/alerts")).json() == {"items": [created], "next_cursor": None}
    replaced = await put(client, when={"kind": "slow", "times_usual": 3})
    assert (replaced.status_code, replaced.json()["revision"]) == (200, 2)
    assert (await client.delete("/v1/alerts/failures")).status_code == 204
    for method in ("GET", "DELETE"):
        problem_of(await client.request(method, "/v1/alerts/failures"), 404)


async def test_labels_belong_to_the_rule(client: httpx.AsyncClient) -> None:
    response = await put(client, labels={"everbeat.file": "billing"})
    assert response.json()["labels"] == {"everbeat.file": "billing"}
    assert (await client.get("/v1/alerts/failures")).json()["labels"] == {"everbeat.file": "billing"}
    assert (await put(client)).json()["labels"] == {}
    assert fields_of(await put(client, labels={"a b": "x"})) == ["labels.'a b'"]


async def test_an_identical_put_changes_nothing(client: httpx.AsyncClient) -> None:
    await put(client)
    response = await put(client)
    assert (response.status_code, response.headers["etag"]) == (200, '"1"')


async def test_secrets_of_targets_are_kept_and_never_shown(client: httpx.AsyncClient, store: Store) -> None:
    response = await put(client, notify=[HTTP, SLACK])
    assert "confidential" not in response.text
    shown = response.json()["notify"]
    assert shown[1]["url"] == "https://hooks.example.org/***"
    assert (await put(client, notify=shown, description="changed")).json()["revision"] == 2
    (stored,) = await store.alert_find(DEFAULT_TENANT, ["failures"])
    assert stored.given.notify[0].headers == {"X-Token": "confidential"}  # type: ignore[union-attr]
    assert stored.given.notify[1].url == SLACK["url"]  # type: ignore[union-attr]
    assert (await put(client, notify=shown[::-1], description="turned")).json()["revision"] == 3
    (stored,) = await store.alert_find(DEFAULT_TENANT, ["failures"])
    assert stored.given.notify[0].url == SLACK["url"]  # type: ignore[union-attr]
    elsewhere = {"kind": "slack", "url": "https://elsewhere.example.org/***"}
    assert fields_of(await put(client, notify=[HTTP, elsewhere])) == ["notify[1].url"]


@pytest.mark.parametrize(
    "when",
    [
        {"kind": "dead"},
        {"kind": "missed"},
        {"kind": "late", "seconds": 30},
        {"kind": "deadline", "by": "04:00", "timezone": "Europe/Berlin"},
        {"kind": "slow", "seconds": 60, "times_usual": 3},
        {"kind": "success_rate", "below": 0.9, "window_seconds": 3600, "min_runs": 5},
        {"kind": "queue_age", "seconds": 60},
        {"kind": "no_worker"},
        {"kind": "skipped", "in_a_row": 3, "reasons": ["overlap"]},
    ],
    ids=lambda when: str(when["kind"]),
)
async def test_every_kind_is_accepted(client: httpx.AsyncClient, when: dict[str, Any]) -> None:
    response = await put(client, when=when)
    assert response.status_code == 201, response.text
    assert when.items() <= response.json()["when"].items()


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"when": {"kind": "unknown"}}, "when.kind"),
        ({"when": {"kind": "dead", "seconds": 5}}, "when.seconds"),
        ({"when": {"kind": "late", "seconds": 0}}, "when.seconds"),
        ({"when": {"kind": "deadline"}}, "when.by"),
        ({"when": {"kind": "deadline", "by": "24:00"}}, "when.by"),
        ({"when": {"kind": "deadline", "by": "04:00", "timezone": "CET+9"}}, "when.timezone"),
        ({"when": {"kind": "slow"}}, "when.seconds"),
        ({"when": {"kind": "slow", "times_usual": 1}}, "when.times_usual"),
        ({"when": {"kind": "success_rate", "below": 90}}, "when.below"),
        ({"when": {"kind": "queue_age", "seconds": 60}, "match": {"label": "a"}}, "match.label"),
        ({"when": {"kind": "no_worker"}, "match": {"schedule": "a"}}, "match.schedule"),
        ({"when": {"kind": "skipped", "in_a_row": 0}}, "when.in_a_row"),
        ({"when": {"kind": "skipped", "reasons": ["bored"]}}, "when.reasons[0]"),
        ({"when": {"kind": "skipped", "reasons": []}}, "when.reasons"),
        ({"match": {"schedule": "a b"}}, "match.schedule"),
        ({"match": {"label": "=x"}}, "match.label"),
        ({"match": {"tenant": "x"}}, "match.tenant"),
        ({"notify": []}, "notify"),
        ({"notify": [HTTP] * 11}, "notify"),
        ({"notify": [{"kind": "http", "url": "http://127.0.0.1/"}]}, "notify[0].url"),
        ({"notify": [HTTP, {"kind": "slack", "url": "http://169.254.169.254/"}]}, "notify[1].url"),
        ({"notify": [{**HTTP, "mode": "callback"}]}, "notify[0].mode"),
        ({"notify": [{"kind": "email", "broker": "mail", "to": ["ops@example.org"]}]}, "notify[0].broker"),
        ({"quiet": {"timezone": "Nowhere"}}, "quiet.timezone"),
        ({"quiet": {"hours": [{"from": "22:00", "to": "7"}]}}, "quiet.hours[0].to"),
        ({"quiet": {"hours": [{"from": "22:00", "to": "07:00", "days": ["Mon"]}]}}, "quiet.hours[0].days[0]"),
        (
            {"quiet": {"maintenance": [{"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}]}},
            "quiet.maintenance[0].to",
        ),
        ({"remind_seconds": 5}, "remind_seconds"),
        ({"group_seconds": -1}, "group_seconds"),
        ({"description": "a\u0000b"}, "description"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_it_refuses_wrong_fields(client: httpx.AsyncClient, changed: dict[str, Any], field: str) -> None:
    response = await put(client, **changed)
    assert fields_of(response) == [field], response.text


async def test_a_wrong_kind_is_refused_with_the_kinds_that_exist(client: httpx.AsyncClient) -> None:
    response = await put(client, when={"kind": "unknown"})
    assert "queue_age" in message_of(response, "when.kind")


async def test_quiet_times_are_shown_in_utc(client: httpx.AsyncClient) -> None:
    window = {"from": "2026-01-01T01:00:00+01:00", "to": "2026-01-01T02:00:00Z"}
    hours = [{"from": "22:00", "to": "07:00", "days": ["SAT"]}]
    response = await put(client, quiet={"timezone": "Europe/Berlin", "hours": hours, "maintenance": [window]})
    shown = {"from": "2026-01-01T00:00:00.000000Z", "to": "2026-01-01T02:00:00.000000Z"}
    assert response.json()["quiet"] == {"timezone": "Europe/Berlin", "hours": hours, "maintenance": [shown]}
    assert (await put(client, quiet=response.json()["quiet"])).json()["revision"] == 1


async def test_a_wrong_name_is_refused(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.put("/v1/alerts/a%20b", json=RULE)) == ["name"]


async def test_there_is_a_limit_of_rules(client: httpx.AsyncClient) -> None:
    for number in range(MAX_ALERTS):
        assert (await put(client, f"rule{number:03}")).status_code == 201
    assert "limit" in problem_of(await put(client, "one-more"), 409)["detail"]
    assert (await put(client, "rule000", description="changed")).status_code == 200
    first = (await client.get("/v1/alerts", params={"limit": 60})).json()
    rest = (await client.get("/v1/alerts", params={"limit": 60, "cursor": first["next_cursor"]})).json()
    assert len({item["name"] for item in first["items"] + rest["items"]}) == MAX_ALERTS


async def test_changes_are_in_the_audit_log_without_secrets(client: httpx.AsyncClient) -> None:
    await put(client)
    await client.delete("/v1/alerts/failures")
    response = await client.get("/v1/audit-log")
    assert [item["action"] for item in response.json()["items"]] == ["alert.delete", "alert.put"]
    assert "confidential" not in response.text

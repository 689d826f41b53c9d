"""/v1/checks: define, read, pause, resume, rotate and delete checks; their pings, ledger, transitions, why and audit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.access import Scope
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.access import Authenticator
from everbeat.services.keys import KeyService
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter
from tests.api.conftest import ON_BOTH_STORES, fields_of, make_client, problem_of


async def put(client: httpx.AsyncClient, name: str = "backup", **more: Any) -> dict[str, Any]:
    trigger = {} if {"cron", "every_seconds"} & more.keys() else {"every_seconds": 3600}
    response = await client.put(f"/v1/checks/{name}", json={"grace_seconds": 60, **trigger, **more})
    assert response.status_code in (200, 201), response.text
    found: dict[str, Any] = response.json()
    return found


async def ping(client: httpx.AsyncClient, check: dict[str, Any], signal: str = "", **more: Any) -> None:
    path = "/ping/" + check["ping_url"].rpartition("/ping/")[2]
    response = await client.post(f"{path}{signal}", **more)
    assert (response.status_code, response.text) == (200, "OK"), response.text


async def read(client: httpx.AsyncClient, path: str = "", name: str = "backup") -> dict[str, Any]:
    response = await client.get(f"/v1/checks/{name}{path}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def pass_time(context: ApiContext, seconds: float) -> datetime:
    """Evaluate the checks as if this much time had passed."""
    from everbeat.services.check_changes import CheckPublisher
    from everbeat.services.check_evaluator import CheckEvaluator

    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    await CheckEvaluator(context.store, context.timelines, CheckPublisher()).run_once(moment)
    return moment


@ON_BOTH_STORES
async def test_a_check_is_created_with_a_ping_url(client: httpx.AsyncClient) -> None:
    labels = {"team": "infra"}
    body = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "grace_seconds": 900, "timeout_seconds": 60, "labels": labels}
    response = await client.put("/v1/checks/backup", json=body)
    assert (response.status_code, response.headers["location"], response.headers["etag"]) == (201, "/v1/checks/backup", '"1"')
    check = response.json()
    assert {key: check[key] for key in body} == body
    assert (check["status"], check["ping_count"], check["due_at"], check["expected_at"]) == ("new", 0, None, None)
    assert check["trigger_text"].startswith("At 03:00 every day")
    assert check["ping_url"].startswith("http://localhost:8080/ping/")
    assert len(check["ping_url"].rpartition("/")[2]) == 36
    assert await read(client) == check
    assert (await client.get("/v1/checks")).json() == {"items": [check], "next_cursor": None}


@ON_BOTH_STORES
async def test_pings_are_listed_and_fill_the_ledger(client: httpx.AsyncClient, context: ApiContext) -> None:
    check = await put(client)
    await ping(client, check, "/start")
    await ping(client, check, content=b"copied 3 files\x00\xff<b>")
    found = await read(client)
    assert (found["status"], found["ping_count"]) == ("up", 2)
    assert found["last_duration_ms"] >= 0
    success, start = (await read(client, "/pings"))["items"]
    assert (start["kind"], start["number"], start["duration_ms"], start["body"]) == ("start", 1, None, None)
    assert (success["kind"], success["body"], success["body_bytes"]) == ("success", "copied 3 files\x00\ufffd<b>", 19)
    assert success["duration_ms"] >= 0
    pinged, upcoming = (await read(client, "/ticks"))["items"]
    assert (pinged["outcome"], pinged["lag_ms"], pinged["ping"], pinged["task_id"]) == ("pinged", 0, 2, None)
    assert (upcoming["outcome"], upcoming["scheduled_for"]) == ("upcoming", found["expected_at"])


@ON_BOTH_STORES
async def test_a_missed_ping_is_in_the_ledger_the_audit_and_the_transitions(
    client: httpx.AsyncClient, context: ApiContext
) -> None:
    check = await put(client, every_seconds=1, grace_seconds=1)
    await ping(client, check)
    moment = await pass_time(context, 3)
    down = await context.checks.get(DEFAULT_TENANT, "backup", now=moment)
    assert down.check.status_at(moment) == "down"
    found = await read(client)
    assert (found["status"], found["reason"], found["due_at"]) == ("down", "missed", None)
    newest, oldest = (await read(client, "/transitions"))["items"]
    assert (newest["from"], newest["to"], newest["reason"], newest["ping"]) == ("up", "down", "missed", None)
    assert (oldest["from"], oldest["to"], oldest["ping"]) == ("new", "up", 1)
    count = await context.check_ledger.audit(DEFAULT_TENANT, from_=None, to=None, now=moment)
    assert (count.expected, count.pinged, count.missed) == (count.pinged + count.missed, 1, count.missed)
    assert count.missed >= 1
    later = await context.check_ledger.audit(DEFAULT_TENANT, from_=None, to=None, now=moment + timedelta(seconds=100))
    assert later.missed == count.missed + 100  # nothing is written while it is down: this follows from the rule
    audit = (await client.get("/v1/audit")).json()
    assert set(audit["checks"]) == {"expected", "pinged", "failed", "missed", "skipped"}
    assert (await client.get("/v1/audit?tenant=all")).json()["checks"]["pinged"] == 1


async def test_a_failure_is_explained(client: httpx.AsyncClient) -> None:
    check = await put(client)
    assert (await read(client, "/why"))["verdict"] == "new"
    await ping(client, check)
    assert (await read(client, "/why"))["verdict"] == "up"
    await ping(client, check, "/3", content=b"disk full")
    found = await read(client, "/why")
    assert found["verdict"] == "down"
    assert "failure with exit status 3" in found["explanation"]
    facts = {fact["fact"]: fact["value"] for fact in found["facts"]}
    assert (facts["last_exit_status"], facts["last_ping_kind"], facts["grace_seconds"]) == (3, "fail", 60)


async def test_an_instant_is_explained(client: httpx.AsyncClient) -> None:
    check = await put(client)
    await ping(client, check)
    (entry, upcoming) = (await read(client, "/ticks"))["items"]
    found = await read(client, f"/why?at={entry['scheduled_for']}")
    assert (found["verdict"], "answered it" in found["explanation"]) == ("pinged", True)
    assert (await read(client, f"/why?at={upcoming['scheduled_for']}"))["verdict"] == "upcoming"
    nothing = await read(client, "/why?at=2020-01-01T00:00:00Z")
    assert (nothing["verdict"], "was created at" in nothing["explanation"]) == ("not_expected", True)


async def test_a_put_replaces_the_definition_and_keeps_the_ping_url(client: httpx.AsyncClient, store: Store) -> None:
    check = await put(client)
    await ping(client, check)
    response = await client.put("/v1/checks/backup", json={"every_seconds": 3600, "grace_seconds": 60})
    assert (response.status_code, response.headers["etag"]) == (200, '"1"')  # nothing differs
    changed = await put(client, every_seconds=60, description="every minute")
    assert (changed["revision"], changed["ping_url"], changed["status"]) == (2, check["ping_url"], "up")
    entries = await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(action="check.put"), before=None, limit=10)
    assert [entry.subject for entry in entries] == ["backup", "backup"]


async def test_a_paused_check_records_pings_and_stays_paused(client: httpx.AsyncClient) -> None:
    check = await put(client)
    await ping(client, check)
    paused = (await client.post("/v1/checks/backup/pause")).json()
    assert (paused["status"], paused["due_at"], paused["expected_at"]) == ("paused", None, None)
    assert (await client.post("/v1/checks/backup/pause")).json() == paused
    await ping(client, check, "/fail")
    found = await read(client)
    assert (found["status"], found["ping_count"]) == ("paused", 2)
    assert (await read(client, "/why"))["verdict"] == "paused"
    resumed = (await client.post("/v1/checks/backup/resume")).json()
    assert (resumed["status"], resumed["due_at"] > resumed["expected_at"]) == ("new", True)
    assert (await client.post("/v1/checks/backup/resume")).json() == resumed


async def test_a_rotation_keeps_the_old_url_for_a_day_or_ends_it(client: httpx.AsyncClient) -> None:
    check = await put(client)
    rotated = (await client.post("/v1/checks/backup/rotate")).json()
    assert rotated["ping_url"] != check["ping_url"]
    until = datetime.fromisoformat(rotated["old_ping_url_until"]) - datetime.fromisoformat(rotated["updated_at"])
    assert until == timedelta(days=1)
    await ping(client, check)
    await ping(client, rotated)
    again = (await client.post("/v1/checks/backup/rotate", json={"keep_old": False})).json()
    assert again["old_ping_url_until"] is None
    for old in (check, rotated):
        problem_of(await client.get("/ping/" + old["ping_url"].rpartition("/")[2]), 404)
    await ping(client, again)


async def test_a_removed_check_is_gone_with_its_ping_url(client: httpx.AsyncClient) -> None:
    check = await put(client)
    assert (await client.delete("/v1/checks/backup")).status_code == 204
    problem_of(await client.get("/ping/" + check["ping_url"].rpartition("/")[2]), 404)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/rotate"), ("GET", "/pings")):
        problem_of(await client.request(method, f"/v1/checks/backup{path}"), 404)


async def test_lists_are_filtered_and_paged(client: httpx.AsyncClient, context: ApiContext) -> None:
    for name in ("a", "b.1", "b.2"):
        await put(client, name)
    await client.post("/v1/checks/b.2/pause")

    async def names(query: str) -> list[str]:
        return [item["name"] for item in (await client.get(f"/v1/checks?{query}")).json()["items"]]

    assert await names("name_prefix=b.") == ["b.1", "b.2"]
    assert await names("state=paused") == ["b.2"]
    first = (await client.get("/v1/checks?limit=2")).json()
    assert await names(f"cursor={first['next_cursor']}") == ["b.2"]
    assert fields_of(await client.get("/v1/checks?state=late")) == ["state"]


async def test_pages_of_pings_ticks_and_transitions_join_up(client: httpx.AsyncClient, context: ApiContext) -> None:
    check = await put(client, cron="* * * * *")
    for number in range(6):
        await ping(client, check, "/fail" if number % 2 else "")
    for path, key in (("pings", "number"), ("transitions", "number")):
        seen: list[int] = []
        cursor = ""
        while True:
            page = await read(client, f"/{path}?limit=2{cursor}")
            seen += [item[key] for item in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == sorted(set(seen), reverse=True)
        assert len(seen) >= 6
    first = await read(client, "/ticks?limit=5")
    second = await read(client, f"/ticks?limit=5&cursor={first['next_cursor']}")
    times = [item["scheduled_for"] for item in (*first["items"], *second["items"])]
    assert times == sorted(set(times))
    assert len(times) == 10


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"every_seconds": 60, "grace_seconds": 0}, "grace_seconds"),
        ({"every_seconds": 60, "timezone": "CET+1"}, "timezone"),
        ({"every_seconds": 60, "tenant_id": "x"}, "tenant_id"),
    ],
)
async def test_invalid_input_names_the_field(client: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    assert fields_of(await client.put("/v1/checks/backup", json=body)) == [field]


async def test_an_invalid_name_is_refused(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.put("/v1/checks/a b", json={"every_seconds": 60})) == ["name"]


async def test_the_ping_url_is_shown_only_to_keys_that_may_change_the_check(
    client: httpx.AsyncClient, context: ApiContext, store: Store
) -> None:
    check = await put(client)
    async with make_client(context._replace(access=Authenticator(store, KeySessions(), is_required=True))) as outside:
        for scope, url in ((Scope.READ, None), (Scope.MANAGE, check["ping_url"])):
            _, key = await KeyService(store).create(DEFAULT_TENANT, scope.value, [scope.value])
            headers = {"Authorization": f"Bearer {key}"}
            assert (await outside.get("/v1/checks/backup", headers=headers)).json()["ping_url"] == url
            text = (await outside.get("/v1/checks", headers=headers)).text
            assert (check["ping_url"].rpartition("/")[2] in text) is (url is not None)


async def test_the_public_url_of_the_server_is_used(context: ApiContext) -> None:
    async with make_client(context._replace(public_url="https://beat.example.org")) as client:
        assert (await put(client))["ping_url"].startswith("https://beat.example.org/ping/")

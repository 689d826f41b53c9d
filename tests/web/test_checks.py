"""The pages of checks: the list, the page of a check with its pings, the form and the actions."""

from __future__ import annotations

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.checks import CheckInput, CheckState, PingKind, PingRequest
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.web.conftest import log_in, new_key, send

SCRIPT = '"><script>alert(1)</script>\x00'
FIELDS = {"trigger": "every_seconds", "every_seconds": "600", "timezone": "UTC", "grace_seconds": "60"}


async def put(context: ApiContext, name: str = "backup") -> str:
    """Create a check, and return its token."""
    given = CheckInput(every_seconds=600, grace_seconds=60, description='<b>"nightly"</b>')
    return (await context.checks.put(DEFAULT_TENANT, name, given)).check.token


async def state(context: ApiContext) -> CheckState:
    return (await context.checks.get(DEFAULT_TENANT, "backup")).check.position.state


async def test_the_form_creates_a_check_and_refuses_what_is_wrong(browser: httpx.AsyncClient, context: ApiContext) -> None:
    created = await send(
        browser, "/new-check", "/new-check", name="backup", labels="team=a\nb=c=d", timeout_seconds="90", **FIELDS
    )
    assert created.headers["location"] == "/checks/backup", created.text
    spec = (await context.checks.get(DEFAULT_TENANT, "backup")).check.spec
    assert (spec.rule.expression, spec.grace_seconds, spec.timeout_seconds) == ("600", 60, 90)
    assert spec.labels == {"team": "a", "b": "c=d"}
    for wrong, message in (
        ({"name": "backup"}, "is taken by another check"),
        ({"name": "a b"}, "must be 1 to 200 characters"),
        ({"name": "x", "grace_seconds": "soon"}, "must be a number"),
        ({"name": "x", "labels": "team"}, "must be one label=value in each line"),
        ({"name": "x", "trigger": "cron", "cron": "61 * * * *"}, "cron"),
    ):
        refused = await send(browser, "/new-check", "/new-check", **{**FIELDS, **wrong})
        assert refused.status_code == 422
        assert message in refused.text, wrong


async def test_an_edit_shows_the_definition_and_keeps_the_ping_url(browser: httpx.AsyncClient, context: ApiContext) -> None:
    token = await put(context)
    assert 'value="600"' in (await browser.get("/checks/backup/edit")).text
    fields = {"trigger": "cron", "cron": "0 3 * * *", "timezone": "Europe/Paris", "grace_seconds": "900"}
    saved = await send(browser, "/checks/backup/edit", "/checks/backup/edit", **fields)
    assert saved.status_code == 303
    check = (await context.checks.get(DEFAULT_TENANT, "backup")).check
    assert (check.spec.rule.timezone, check.token) == ("Europe/Paris", token)


async def test_the_page_shows_pings_escaped_and_copyable_examples(browser: httpx.AsyncClient, context: ApiContext) -> None:
    token = await put(context)
    given = PingRequest(
        kind=PingKind.FAIL, exit_status=3, body=SCRIPT.encode() + b"\xff", body_bytes=40, user_agent=SCRIPT[:-1]
    )
    await context.pings.accept(token, given)
    text = (await browser.get("/checks/backup")).text
    assert "<script>alert" not in text
    assert "\x00" not in text
    assert "\u2400\ufffd" in text
    assert "the job reported a failure with exit status 3" in text
    assert f"curl -fsS -m 10 --retry 3 http://localhost:8080/ping/{token}/start" in text
    shown = (await browser.get("/checks")).text
    assert "tick-failed" in shown
    assert "&lt;b&gt;" in text
    assert (await browser.get("/search?q=back")).text.count("/checks/backup") == 1


async def test_the_strip_leads_to_the_explanation(browser: httpx.AsyncClient, context: ApiContext) -> None:
    await context.pings.accept(await put(context), PingRequest(kind=PingKind.SUCCESS))
    shown = (await browser.get("/checks")).text
    link = shown.partition('<a href="/checks/backup/why?at=')[2].partition('"')[0]
    text = (await browser.get(f"/checks/backup/why?at={link}")).text
    assert "answered it" in text


async def test_actions_pause_resume_rotate_and_delete(browser: httpx.AsyncClient, context: ApiContext) -> None:
    token = await put(context)
    paused = await send(browser, "/checks", "/checks/backup/pause", back="/checks?state=new")
    assert paused.headers["location"] == "/checks?state=new"
    assert await state(context) is CheckState.PAUSED
    await send(browser, "/checks/backup", "/checks/backup/resume")
    assert await state(context) is CheckState.NEW
    await send(browser, "/checks/backup", "/checks/backup/rotate", revoke="1")
    check = (await context.checks.get(DEFAULT_TENANT, "backup")).check
    assert (check.token == token, check.old_token) == (False, None)
    deleted = await send(browser, "/checks/backup", "/checks/backup/delete")
    assert deleted.headers["location"] == "/checks"
    assert (await browser.get("/checks/backup")).status_code == 404


async def test_a_reader_sees_no_ping_url_and_no_actions(locked: httpx.AsyncClient, context: ApiContext, store: Store) -> None:
    token = await put(context)
    _, key = await new_key(store, "read")
    await log_in(locked, key)
    text = (await locked.get("/checks/backup")).text
    assert "backup" in text
    assert token not in text
    assert "/checks/backup/rotate" not in text
    assert (await locked.get("/new-check")).status_code == 403


@pytest.mark.parametrize("query", ["state=down", "name_prefix=b", "state=nothing", "cursor="])
async def test_the_list_is_filtered(browser: httpx.AsyncClient, context: ApiContext, query: str) -> None:
    await put(context)
    response = await browser.get(f"/checks?{query}")
    assert response.status_code == 200
    assert ("/checks/backup" in response.text) is (query != "state=down")

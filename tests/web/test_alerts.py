"""The pages of incidents and alert rules, without JavaScript."""

from __future__ import annotations

from typing import Any

import httpx

from everbeat.api.app import ApiContext
from everbeat.core.alerts import AlertRule
from everbeat.core.incidents import IncidentResolution, IncidentState
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.contract.test_alerts import evaluation, make_incident, make_rule
from tests.factories import NOW
from tests.web.conftest import log_in, new_key, send

FORM = {
    "name": "deadline",
    "description": "Look at the runbook",
    "kind": "deadline",
    "by": "04:00",
    "schedule": "nightly",
    "url": "https://example.org/alerts",
    "slack_url": "https://hooks.example.org/services/confidential",
    "targets": '[{"kind": "worker", "type": "tell"}]',
    "quiet": '{"hours": [{"from": "22:00", "to": "07:00"}]}',
    "remind_seconds": "3600",
    "notify_resolved": "1",
    "enabled": "1",
}


async def stored(context: ApiContext, name: str = "deadline") -> AlertRule:
    return await context.alerts.get(DEFAULT_TENANT, name)


async def test_a_rule_is_created_changed_and_deleted(browser: httpx.AsyncClient, context: ApiContext) -> None:
    created = await send(browser, "/alerts/new", "/alerts/new", **FORM)
    assert (created.status_code, created.headers["location"]) == (303, "/alerts/deadline"), created.text
    first = await stored(context)
    assert (first.given.when.by, first.given.match.schedule) == ("04:00", "nightly")  # type: ignore[union-attr]
    assert [type(target).__name__ for target in first.given.notify] == ["HttpTarget", "SlackTarget", "WorkerTarget"]
    assert (first.given.remind_seconds, first.given.notify_resolved, first.given.quiet is not None) == (3600, True, True)
    assert "deadline" in (await browser.get("/alerts")).text

    shown = (await browser.get("/alerts/deadline")).text
    assert "confidential" not in shown
    changed: dict[str, Any] = {**FORM, "by": "05:00", "slack_url": "https://hooks.example.org/***", "name": ""}
    del changed["notify_resolved"]
    assert (await send(browser, "/alerts/deadline", "/alerts/deadline", **changed)).status_code == 303
    second = await stored(context)
    assert (second.given.when.by, second.given.notify_resolved, second.revision) == ("05:00", False, 2)  # type: ignore[union-attr]
    assert second.given.notify == first.given.notify

    assert (await send(browser, "/alerts/deadline", "/alerts/deadline/delete")).headers["location"] == "/alerts"
    assert await context.alerts.page(DEFAULT_TENANT, after_name=None, limit=10) == []


async def test_a_saved_form_changes_nothing(browser: httpx.AsyncClient, context: ApiContext) -> None:
    """What the form shows is what it saves, for rules of every kind and with targets that it has no fields for."""
    from everbeat.web.alert_fields import fields_of_alert

    kinds: list[dict[str, Any]] = [
        {"kind": "slow", "seconds": 60.0, "times_usual": 2.5},
        {"kind": "success_rate", "below": 0.9, "window_seconds": 600.0, "min_runs": 5},
        {"kind": "skipped", "in_a_row": 2, "reasons": ["overlap", "quota"]},
        {"kind": "deadline", "by": "04:00", "timezone": "Europe/Berlin", "even_if_paused": True},
        {"kind": "queue_age", "seconds": 5.0},
    ]
    targets = [
        {"kind": "http", "url": "https://example.org/a"},
        {"kind": "http", "url": "https://example.org/b", "headers": {"X-A": "b"}},
        {"kind": "http", "endpoint": "billing"},
        {"kind": "worker", "type": "tell"},
    ]
    async with httpx.AsyncClient(transport=browser._transport, base_url=browser.base_url) as api:
        for number, when in enumerate(kinds):
            body = {"when": when, "notify": targets, "enabled": False, "labels": {"everbeat.file": "billing"}}
            response = await api.put(f"/v1/alerts/rule{number}", json=body)
            assert response.status_code == 201, response.text
    for number in range(len(kinds)):
        name = f"rule{number}"
        rule = await stored(context, name)
        fields = {key: value for key, value in fields_of_alert(rule).items() if key != "name"}
        assert (await send(browser, f"/alerts/{name}", f"/alerts/{name}", **fields)).status_code == 303
        saved = await stored(context, name)
        assert sorted(map(repr, saved.given.notify)) == sorted(map(repr, rule.given.notify))
        assert (saved.given.when, saved.given.match, saved.given.enabled) == (rule.given.when, rule.given.match, False)
        assert saved.given.labels == {"everbeat.file": "billing"}


async def test_wrong_fields_are_named_and_what_was_typed_stays(browser: httpx.AsyncClient, context: ApiContext) -> None:
    for wrong, text in [
        ({"by": "4 am"}, "when.by"),
        ({"by": "", "seconds": "60"}, "when"),
        ({"seconds": "sixty"}, "must be a number"),
        ({"targets": "{"}, "targets"),
        ({"url": "http://127.0.0.1/"}, "notify[0].url"),
        ({"name": "a b"}, "name"),
    ]:
        response = await send(browser, "/alerts/new", "/alerts/new", **{**FORM, **wrong})
        assert response.status_code == 422
        assert text in response.text
        assert "Look at the runbook" in response.text
    assert (await send(browser, "/alerts/new", "/alerts/new", **FORM)).status_code == 303
    assert (await send(browser, "/alerts/new", "/alerts/new", **FORM)).status_code == 409


async def test_incidents_are_shown_counted_and_acknowledged(
    browser: httpx.AsyncClient, context: ApiContext, store: Store
) -> None:
    assert "No alert rules" in (await browser.get("/incidents")).text
    await store.alert_write(make_rule(), expected=None)
    over: dict[str, Any] = {"state": IncidentState.RESOLVED, "resolution": IncidentResolution.RECOVERED, "pending": None}
    incident = make_incident(summary="<b>broken</b>", details='{"error": "<i>no</i>"}', opened_at=NOW)
    ended = make_incident("ended", summary="it was broken", resolved_at=NOW, **over)
    assert await store.alert_apply(await evaluation(store, opened=[incident, ended]), now=NOW)
    assert "1 open incident" in (await browser.get("/")).text
    listed = (await browser.get("/incidents")).text
    assert "&lt;b&gt;broken" in listed
    assert "it was broken" not in listed
    assert "it was broken" in (await browser.get("/incidents?state=all")).text
    page = f"/incidents/{incident.id}"
    shown = (await browser.get(page)).text
    assert "&lt;i&gt;no" in shown
    assert f'href="/tasks/{incident.task_id}"' in shown
    response = await send(browser, page, f"{page}/acknowledge", note="disk full")
    assert (response.status_code, response.headers["location"]) == (303, page)
    found = await context.alerts.incident(DEFAULT_TENANT, incident.id)
    assert (found.state, found.note) == (IncidentState.ACKNOWLEDGED, "disk full")
    assert "disk full" in (await browser.get(page)).text
    assert "1 acknowledged incident" in (await browser.get("/")).text


async def test_acknowledging_needs_the_token_of_the_form_and_the_scope(locked: httpx.AsyncClient, store: Store) -> None:
    await store.alert_write(make_rule(), expected=None)
    incident = make_incident()
    assert await store.alert_apply(await evaluation(store, opened=[incident]), now=NOW)
    _, text = await new_key(store, "manage")
    await log_in(locked, text)
    page = f"/incidents/{incident.id}"
    assert (await locked.post(f"{page}/acknowledge", data={"note": "x"})).status_code == 403
    assert (await send(locked, page, f"{page}/acknowledge", note="x")).status_code == 303
    locked.cookies.clear()
    _, text = await new_key(store, "read")
    await log_in(locked, text)
    assert "Acknowledge</button>" not in (await locked.get(page)).text
    assert (await send(locked, "/alerts", "/alerts/new", **FORM)).status_code == 403

"""Actions of the dashboard: they call the services of the API with the caller of the session, and large ones are confirmed."""

from __future__ import annotations

import httpx

from everbeat.api.app import ApiContext
from everbeat.core.bulk import BulkState
from everbeat.core.schedules import DEFAULT_TENANT, Status
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter
from tests.web.conftest import log_in, new_key, send

CRON = {"cron": "0 2 * * *", "target": {"kind": "worker", "type": "report"}, "description": "nightly"}


async def test_a_queue_is_paused_with_a_reason_and_shown_in_a_banner(browser: httpx.AsyncClient, context: ApiContext) -> None:
    response = await send(browser, "/queues", "/queues/pause", queue="reports", note="migration", **{"for": "1h"})
    assert response.headers["location"] == "/queues"
    (pause,) = await context.pauses.active(DEFAULT_TENANT)
    assert (pause.queue, pause.note, pause.until_at is not None) == ("reports", "migration", True)
    assert "migration" in (await browser.get("/")).text
    await send(browser, "/queues", "/queues/resume", queue="reports")
    assert await context.pauses.active(DEFAULT_TENANT) == []


async def test_a_bulk_action_needs_the_typed_number_without_a_filter(browser: httpx.AsyncClient, context: ApiContext) -> None:
    await context.schedules.put(DEFAULT_TENANT, "nightly", CRON)
    page = "/schedules/bulk?action=pause"
    refused = await send(browser, page, "/schedules/bulk", action="pause", expect_count="1", must_type="1")
    assert refused.status_code == 422
    changed = await send(browser, page, "/schedules/bulk", action="pause", expect_count="2", name_prefix="night")
    assert changed.status_code == 409
    begun = await send(browser, page, "/schedules/bulk", action="pause", expect_count="1", name_prefix="night")
    assert begun.status_code == 303
    (operation,) = await context.bulk.page(DEFAULT_TENANT, before=None, limit=10)
    assert (operation.matched, operation.state) == (1, BulkState.RUNNING)
    await send(browser, f"/operations/{operation.id}", f"/operations/{operation.id}/cancel")
    assert (await context.bulk.get(DEFAULT_TENANT, operation.id)).state is BulkState.CANCELLED


async def test_an_edit_keeps_what_the_form_does_not_show(browser: httpx.AsyncClient, context: ApiContext) -> None:
    await context.schedules.put(DEFAULT_TENANT, "nightly", {**CRON, "retry": {"kind": "fixed", "base_seconds": 7}})
    fields = {
        "trigger": "cron",
        "cron": "0 3 * * *",
        "timezone": "Europe/Paris",
        "kind": "worker",
        "queue": "q",
        "type": "other",
    }
    stale = await send(browser, "/schedules/nightly", "/schedules/nightly/edit", **fields, revision="7")
    assert stale.status_code == 422
    assert "revision" in stale.text
    saved = await send(browser, "/schedules/nightly", "/schedules/nightly/edit", **fields, revision="1", labels="team=a")
    assert saved.status_code == 303, saved.text
    spec = (await context.schedules.get(DEFAULT_TENANT, "nightly")).spec
    assert (spec.rule.expression, spec.rule.timezone, spec.retry.base_seconds) == ("0 3 * * *", "Europe/Paris", 7)
    assert (spec.description, spec.labels, spec.task_type) == ("nightly", {"team": "a"}, "other")


async def test_selected_schedules_are_changed_and_failures_are_named(browser: httpx.AsyncClient, context: ApiContext) -> None:
    await context.schedules.put(DEFAULT_TENANT, "one", CRON)
    response = await send(browser, "/schedules", "/schedules/selected", action="pause", selected="one")
    assert response.status_code == 303
    assert (await context.schedules.get(DEFAULT_TENANT, "one")).status is Status.PAUSED
    await send(browser, "/schedules", "/schedules/selected", action="resume", selected="gone")
    assert "there is no schedule" in (await browser.get("/schedules")).text


async def test_actions_are_in_the_audit_log_under_the_name_of_the_key(locked: httpx.AsyncClient, store: Store) -> None:
    _, text = await new_key(store)
    await log_in(locked, text)
    await send(locked, "/queues", "/pauses/begin", note="night")
    entries = await store.audit_log_list(None, AuditLogFilter(action="pause.begin"), before=None, limit=10)
    assert [one.actor for one in entries] == ["somebody"]
    refused = await send(locked, "/queues", "/pauses/begin", all_tenants="1")
    assert refused.status_code == 403

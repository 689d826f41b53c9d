"""All pages: their headers, their escaping, and that none needs anything that the Content-Security-Policy forbids."""

from __future__ import annotations

import asyncio
import hashlib
import re
from datetime import UTC, datetime
from importlib.resources import files
from uuid import UUID

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.access import LOCAL_CALLER
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.service_levels import BUCKET, LevelBucket, bucket_of
from everbeat.services.audit import AuditService
from everbeat.store.base import Store
from everbeat.web.pages import PAGE_ROUTES
from everbeat.web.rendering import CONTENT_SECURITY_POLICY, environment
from everbeat.web.static_files import static_files, static_url
from tests.web.conftest import make_browser, send

TEMPLATES = sorted(environment().list_templates())
STATIC = files("everbeat.web").joinpath("static")
SCRIPT = '"><script>alert(1)</script>{{7*7}}'
PLAIN_PAGES = sorted({route.path for route in PAGE_ROUTES if route.method == "GET" and "{" not in route.path})


async def put_schedule(context: ApiContext, name: str = "nightly", **more: object) -> None:
    data = {"cron": "0 2 * * *", "target": {"kind": "worker", "type": "report"}, **more}
    await context.schedules.put(DEFAULT_TENANT, name, data)


@pytest.mark.parametrize("path", PLAIN_PAGES)
async def test_every_page_is_served_with_its_headers(browser: httpx.AsyncClient, path: str) -> None:
    response = await browser.get(path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@pytest.mark.parametrize("path", PLAIN_PAGES)
async def test_every_page_ignores_strange_parameters(browser: httpx.AsyncClient, path: str) -> None:
    response = await browser.get(f"{path}?nothing=%00&status=no&queue={SCRIPT}&name_prefix=%ff&state=%0a")
    assert response.status_code in (200, 422)
    assert "<script>alert" not in response.text


@pytest.mark.parametrize("route", PAGE_ROUTES, ids=lambda one: f"{one.method} {one.path}")
async def test_no_page_is_served_without_a_key(locked: httpx.AsyncClient, route: object) -> None:
    path = re.sub(r"\{\w+\}", "x", route.path)  # type: ignore[attr-defined]
    response = await locked.request(route.method, path)  # type: ignore[attr-defined]
    assert response.status_code == 303
    assert response.headers["location"].startswith("/login")


async def test_input_is_escaped_everywhere(browser: httpx.AsyncClient, context: ApiContext) -> None:
    await put_schedule(context, description=SCRIPT, payload={"field": SCRIPT}, labels={"label": SCRIPT})
    await send(browser, "/schedules", "/schedules/nightly/pause", note=SCRIPT)
    for path in ("/schedules", "/schedules/nightly", "/schedules/nightly/why", f"/search?q={SCRIPT}"):
        text = (await browser.get(path)).text
        assert "<script>alert" not in text
        assert "49" not in re.sub(r"[0-9a-f]{8,}|[\d:.]{4,}", "", text) or "{{7*7}}" in text


async def test_the_root_is_json_for_clients_and_a_page_for_browsers(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/", headers={"accept": "*/*"})).headers["content-type"] == "application/json"
    assert (await browser.get("/")).headers["content-type"].startswith("text/html")
    assert (
        (await browser.get("/", headers={"accept": "*/*", "hx-request": "true"}))
        .headers["content-type"]
        .startswith("text/html")
    )


async def test_errors_are_pages_that_say_what_to_do(browser: httpx.AsyncClient) -> None:
    response = await browser.get("/schedules/nothing")
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("text/html")
    assert "There is no schedule" in response.text
    assert response.headers["x-request-id"] in response.text


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_use_nothing_that_the_policy_forbids(name: str) -> None:
    source, _, _ = environment().loader.get_source(environment(), name)  # type: ignore[union-attr]
    assert not re.search(r"\sstyle\s*=|<style|\son[a-z]+=['\"]|hx-on|javascript:|hx-vals\s*=\s*['\"]js:|\|\s*safe\b", source)
    assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*type=\"application/json\")", source)
    # A trigger filter such as click[ctrlKey] is evaluated as code.
    assert not re.search(r"hx-trigger=\"[^\"]*\[", source)
    assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", source)


def test_every_form_that_changes_something_has_a_token() -> None:
    for name in TEMPLATES:
        source, _, _ = environment().loader.get_source(environment(), name)  # type: ignore[union-attr]
        for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", source, re.DOTALL):
            assert "token_field" in form, (name, form[:100])


def test_vendored_files_are_as_listed() -> None:
    listed = {}
    for line in STATIC.joinpath("vendor/VENDORED").read_text().splitlines():
        if not line.startswith("#"):
            digest, name, *_ = line.split()
            listed[name] = digest
    found = {one.name for one in STATIC.joinpath("vendor").iterdir() if one.name.endswith((".js", ".css"))}
    assert found == set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256(STATIC.joinpath(f"vendor/{name}").read_bytes()).hexdigest() == digest


def test_all_scripts_and_styles_take_less_than_50_kb_compressed() -> None:
    sizes = {name: len(one.compressed or one.body) for name, one in static_files().items() if name.endswith((".js", ".css"))}
    assert sum(sizes.values()) < 50_000, sizes


async def test_static_files_are_compressed_and_kept_by_browsers(locked: httpx.AsyncClient) -> None:
    url = static_url("everbeat.css")
    response = await locked.get(url, headers={"accept-encoding": "gzip"})
    assert (response.status_code, response.headers["content-encoding"]) == (200, "gzip")
    assert "immutable" in response.headers["cache-control"]
    plain = await locked.get(url, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == response.content == static_files()["everbeat.css"].body


async def test_the_audit_is_loaded_after_its_page(browser: httpx.AsyncClient, context: ApiContext) -> None:
    await put_schedule(context)
    shown = (await browser.get("/audit?from=2026-01-01T00:00")).text
    assert 'hx-get="/audit/report?from=2026-01-01T00:00"' in shown
    assert "nightly" not in shown
    part = (await browser.get("/audit/report", headers={"hx-request": "true"})).text
    assert "nightly" in part
    assert "<html" not in part
    assert "<html" in (await browser.get("/audit/report")).text
    refused = await browser.get("/audit?from=2026-01-02T00:00&to=2026-01-01T00:00")
    assert refused.status_code == 422
    assert "must be earlier than to" in refused.text


async def test_the_forecast_names_the_schedules_of_the_busiest_second(browser: httpx.AsyncClient, context: ApiContext) -> None:
    for index in range(7):
        await put_schedule(context, f"job-{index}", timezone="UTC")
    text = (await browser.get("/overview/forecast")).text
    assert len(re.findall(r'<text class="heat-label"', text)) == 24
    assert re.search(r"<title>02:00: 7</title>", text)
    assert "02:00:00 UTC</strong>, with 7 ticks" in text
    assert text.count('href="/schedules/job-') == 5
    assert "and 2 more" in text


async def test_the_calendar_of_a_schedule_counts_the_ticks_of_each_day(context: ApiContext, store: Store) -> None:
    created = datetime(2026, 3, 10, 12, tzinfo=UTC)
    data = {"cron": "0 2 * * *", "timezone": "Europe/Paris", "target": {"kind": "worker", "type": "report"}}
    await context.schedules.put(DEFAULT_TENANT, "nightly", data, now=created)
    await context.schedules.pause(DEFAULT_TENANT, "nightly", note=None, now=created)
    await context.schedules.resume(DEFAULT_TENANT, "nightly", now=datetime(2026, 3, 20, 12, tzinfo=UTC))
    audit = AuditService(store, context.timelines, late_seconds=5, retention_days=36_500)
    async with make_browser(context._replace(audit=audit)) as browser:
        text = (await browser.get("/schedules/nightly/calendar?month=2026-03")).text
        assert "March 2026" in text
        assert text.count("1 skipped") == 10
        assert text.count("1 missing") == 11
        # The day of the DST change begins at 23:00 UTC and ends at 22:00 UTC.
        day = "/schedules/nightly/ticks?from=2026-03-28T23%3A00%3A00Z&amp;to=2026-03-29T22%3A00%3A00Z"
        assert day in text
        ledger = (await browser.get(day.replace("&amp;", "&"))).text
        assert ledger.count('<span class="state state-missing">') == 1
        assert (await browser.get("/schedules/nightly/calendar?month=2026-13")).status_code == 422
        assert "missing</span>" not in (await browser.get("/schedules/nightly/calendar?month=2026-02")).text
    async with make_browser(
        context._replace(audit=AuditService(store, context.timelines, late_seconds=5, retention_days=1))
    ) as browser:
        text = (await browser.get("/schedules/nightly/calendar?month=2026-03")).text
        assert text.count("not counted") == 22
        assert "still kept" in text


async def test_revisions_show_old_and_new_values_without_secrets(browser: httpx.AsyncClient, context: ApiContext) -> None:
    target = {"kind": "http", "url": "https://example.com/old", "headers": {"Authorization": "Bearer s3cr3t-1"}}
    await put_schedule(context, target=target, payload={"a": "s3cr3t-2"})
    target = {**target, "url": "https://example.com/new", "headers": {"Authorization": "Bearer s3cr3t-3"}}
    changes = {"cron": "0 3 * * *", "target": target, "payload": {"a": "s3cr3t-4"}, "description": f"{SCRIPT}{'x' * 300}"}
    await context.schedules.patch(DEFAULT_TENANT, "nightly", changes, by=LOCAL_CALLER)
    text = (await browser.get("/schedules/nightly/revisions")).text
    assert "<code>cron</code>: <del>0 2 * * *</del> → <ins>0 3 * * *</ins>" in text
    assert "<code>target</code>: changed" in text
    assert "example.com" not in text
    assert "<code>payload</code>: changed" in text
    assert "x" * 200 not in text.replace(f"{SCRIPT}", "")
    assert "s3cr3t" not in text
    assert "<script>alert" not in text


async def test_a_refresh_of_a_part_leaves_the_message_for_the_next_page(browser: httpx.AsyncClient) -> None:
    message = {"Cookie": "everbeat_message=It%20was%20saved."}
    part = await browser.get("/schedules", headers={**message, "HX-Request": "true"})
    assert "It was saved." not in part.text
    assert "set-cookie" not in part.headers
    whole = await browser.get("/schedules", headers=message)
    assert "It was saved." in whole.text
    assert "everbeat_message=;" in whole.headers["set-cookie"]


async def test_the_page_of_service_levels_shows_what_is_left(browser: httpx.AsyncClient, context: ApiContext) -> None:
    assert "Nothing has been counted yet" in (await browser.get("/slo")).text
    at = bucket_of(await context.store.clock())
    counts = LevelBucket(at, fire_good=9995, fire_total=10_000, success_good=0, success_total=100)
    await context.store.service_level_write(UUID(int=1), [counts])
    page = await browser.get("/slo")
    if "Nothing has been counted yet" in page.text:  # the report is cached for some seconds
        await context.service_levels.report(at + BUCKET)
        page = await browser.get("/slo")
    text = re.sub(r"<[^>]+>", " ", page.text)
    assert "99.9 % of the ticks fire within 1 s after they are due" in text
    assert "50.0 %" in text
    assert "exhausted" in text
    assert 'aria-label="Budget left of fire"' in page.text


async def test_the_search_finds_schedules_by_a_part_of_their_name(browser: httpx.AsyncClient, context: ApiContext) -> None:
    for name in ("nightly-report", "report-a", "mail"):
        await put_schedule(context, name)
    text = (await browser.get("/search?q=report")).text
    assert text.index('href="/schedules/report-a"') < text.index('href="/schedules/nightly-report"')
    assert "/schedules/mail" not in text


async def test_the_overview_does_not_wait_for_the_numbers_of_schedules(
    browser: httpx.AsyncClient, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_schedule(context)
    may_count = asyncio.Event()
    schedule_count = context.store.schedule_count

    async def slow(tenant_id: UUID) -> dict[str, int]:
        await may_count.wait()
        return await schedule_count(tenant_id)

    monkeypatch.setattr(context.store, "schedule_count", slow)
    first = (await browser.get("/")).text
    assert "<dt>Active schedules</dt><dd>…</dd>" in first
    assert 'hx-trigger="load delay' in first
    may_count.set()
    while "…" in (text := (await browser.get("/")).text.partition("Active schedules</dt>")[2][:20]):
        await asyncio.sleep(0)
    assert "<dd>1</dd>" in text

"""Refreshes of pages: many dashboards that show the same list read and render it once."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import httpx
import pytest

from everbeat.api.context import ApiContext
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.event_stream import EventKind
from everbeat.services.live_updates import Interest
from everbeat.store.base import Store
from everbeat.web import rendering
from tests.web.conftest import HTML, log_in, new_key, token_in

REFRESH = {"hx-request": "true", "hx-target": "live"}


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The templates that were rendered."""
    names: list[str] = []
    page_now = rendering.page_now

    def counted(request: object, template: str, *args: object, **values: object) -> object:
        names.append(template)
        return page_now(request, template, *args, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(rendering, "page_now", counted)
    return names


async def test_dashboards_that_refresh_together_render_once(browser: httpx.AsyncClient, rendered: list[str]) -> None:
    pages = await asyncio.gather(*(browser.get("/tasks?state=ready", headers=REFRESH) for _ in range(10)))
    assert {page.status_code for page in pages} == {200}
    assert len({page.text for page in pages}) == 1
    assert rendered == ["tasks.html"]


async def test_another_filter_is_not_shared_and_whole_pages_are_never(browser: httpx.AsyncClient, rendered: list[str]) -> None:
    await browser.get("/tasks?state=ready", headers=REFRESH)
    await browser.get("/tasks?state=dead", headers=REFRESH)
    await browser.get("/tasks?state=dead")
    await browser.get("/tasks?state=dead")
    assert len(rendered) == 4


async def test_what_was_rendered_before_a_refresh_is_not_used_after_it(
    browser: httpx.AsyncClient, context: ApiContext, rendered: list[str]
) -> None:
    interests = frozenset({Interest(EventKind.TICK)})
    with context.live_updates.open(DEFAULT_TENANT, interests, wants_lag=False) as page:
        await browser.get("/schedules", headers=REFRESH)
        context.event_stream.publish(EventKind.TICK, DEFAULT_TENANT, {"schedule_id": uuid4(), "outcome": "skipped"})
        assert await page.take(5)
        await browser.get("/schedules", headers=REFRESH)
    assert len(rendered) == 2


async def test_an_error_is_not_kept(browser: httpx.AsyncClient, context: ApiContext) -> None:
    assert (await browser.get("/schedules/late", headers=REFRESH)).status_code == 404
    data = {"cron": "0 2 * * *", "target": {"kind": "worker", "type": "report"}}
    await context.schedules.put(DEFAULT_TENANT, "late", data)
    assert (await browser.get("/schedules/late", headers=REFRESH)).status_code == 200


async def test_each_session_gets_its_own_form_token(locked: httpx.AsyncClient, store: Store, rendered: list[str]) -> None:
    tokens = []
    clients = [await _logged_in(locked, store, "manage") for _ in range(2)]
    rendered.clear()
    pages = await asyncio.gather(*(client.get("/queues", headers=REFRESH) for client in clients))
    assert rendered == ["queues.html"]
    for client, page in zip(clients, pages, strict=True):
        assert token_in(page.text) == token_in((await client.get("/queues")).text)
        tokens.append(token_in(page.text))
    assert len(set(tokens)) == 2


async def test_callers_with_other_permissions_get_their_own_page(
    locked: httpx.AsyncClient, store: Store, rendered: list[str]
) -> None:
    clients = [await _logged_in(locked, store, scope) for scope in ("read", "manage")]
    rendered.clear()
    may_read, may_manage = await asyncio.gather(*(client.get("/queues", headers=REFRESH) for client in clients))
    assert rendered == ["queues.html"] * 2
    assert "/pauses/begin" not in may_read.text
    assert "/pauses/begin" in may_manage.text


async def _logged_in(locked: httpx.AsyncClient, store: Store, scope: str) -> httpx.AsyncClient:
    """Another browser of the same site."""
    client = httpx.AsyncClient(transport=locked._transport, base_url=locked.base_url, headers=HTML)
    _, text = await new_key(store, *(("read",) if scope == "read" else ("read", scope)))
    await log_in(client, text)
    return client

"""Login and logout: session cookies, what ends them, and forms that another site cannot send."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.keys import ApiKey
from everbeat.services.access import Authenticator
from everbeat.services.keys import KeyService
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter
from tests.web.conftest import log_in, new_key, send, token_in

SESSION = "everbeat_session"


async def test_a_page_without_a_session_leads_to_the_login(locked: httpx.AsyncClient) -> None:
    response = await locked.get("/schedules")
    assert (response.status_code, response.headers["location"]) == (303, "/login?next=/schedules")
    partial = await locked.get("/schedules", headers={"hx-request": "true"})
    assert partial.headers["hx-redirect"] == "/login?next=/schedules"


async def test_a_login_sets_a_short_strict_cookie_and_opens_the_pages(locked: httpx.AsyncClient, store: Store) -> None:
    _, text = await new_key(store)
    response = await log_in(locked, text, "/schedules")
    assert (response.status_code, response.headers["location"]) == (303, "/schedules")
    cookie = response.headers["set-cookie"]
    assert cookie.startswith(f"{SESSION}=eb_")
    assert text not in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=28800"} <= set(cookie.split("; "))
    page = await locked.get("/schedules")
    assert page.status_code == 200
    assert "somebody" in page.text


async def test_over_tls_the_cookie_is_secure(context: ApiContext, locked: httpx.AsyncClient, store: Store) -> None:
    _, text = await new_key(store)
    locked.base_url = httpx.URL("https://localhost:8080")
    locked.headers["origin"] = "https://localhost:8080"
    assert "; Secure" in (await log_in(locked, text)).headers["set-cookie"]


@pytest.mark.parametrize("key", ["", "eb_wrong", "näh", "eb_" + "A" * 49])
async def test_a_wrong_key_is_refused_with_a_message(locked: httpx.AsyncClient, key: str) -> None:
    response = await log_in(locked, key)
    assert response.status_code == 401
    assert 'role="alert"' in response.text
    assert SESSION not in response.headers.get("set-cookie", "")


async def test_a_logout_ends_the_session_on_the_server(locked: httpx.AsyncClient, store: Store) -> None:
    _, text = await new_key(store)
    await log_in(locked, text)
    stolen = locked.cookies[SESSION]
    response = await send(locked, "/schedules", "/logout")
    assert (response.status_code, response.headers["location"]) == (303, "/login")
    locked.cookies.set(SESSION, stolen)
    assert (await locked.get("/schedules")).status_code == 303


async def test_revoking_the_key_ends_its_sessions(locked: httpx.AsyncClient, store: Store) -> None:
    key, text = await new_key(store)
    await log_in(locked, text)
    assert (await locked.get("/schedules")).status_code == 200
    await KeyService(store).revoke(key.id)
    assert (await locked.get("/schedules")).status_code == 303


async def test_a_session_ends_with_its_key(access: Authenticator, store: Store) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    _, text = await new_key(store, expires_at=soon)
    caller = await access.authenticate([f"Bearer {text}".encode()], "127.0.0.1")
    session: ApiKey = (await KeyService(store).open_session(caller, seconds=3600)).key
    assert session.expires_at == soon


async def test_a_session_has_the_scopes_of_its_key(locked: httpx.AsyncClient, store: Store) -> None:
    _, text = await new_key(store, "read")
    await log_in(locked, text)
    response = await send(locked, "/schedules", "/schedules/nightly/pause")
    assert response.status_code == 403
    assert "scope manage" in response.text


async def test_login_and_logout_are_in_the_audit_log(locked: httpx.AsyncClient, store: Store) -> None:
    _, text = await new_key(store)
    await log_in(locked, text)
    await send(locked, "/schedules", "/logout")
    entries = await store.audit_log_list(None, AuditLogFilter(), before=None, limit=10)
    assert [(one.action, one.actor) for one in entries][:2] == [("session.end", "somebody"), ("session.create", "somebody")]


async def test_the_stream_of_the_pages_accepts_the_session_but_the_routes_of_the_api_do_not(
    locked: httpx.AsyncClient, store: Store
) -> None:
    assert (await locked.head("/live?on=tick")).headers["location"].startswith("/login")
    _, text = await new_key(store)
    await log_in(locked, text)
    assert (await locked.get("/v1/schedules")).status_code == 401
    assert (await locked.get("/v1/events?types=tick")).status_code == 401
    # HEAD, because the stream has no end.
    assert (await locked.head("/live?on=tick")).headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}],
)
async def test_a_form_of_another_site_is_refused(locked: httpx.AsyncClient, store: Store, headers: dict[str, str]) -> None:
    _, text = await new_key(store)
    await log_in(locked, text)
    token = token_in((await locked.get("/schedules")).text)
    response = await locked.post("/logout", data={"csrf_token": token}, headers=headers)
    assert response.status_code == 403
    assert (await locked.get("/schedules")).status_code == 200


@pytest.mark.parametrize("token", ["", "0" * 64, "ä"])
async def test_a_form_without_the_right_token_is_refused(locked: httpx.AsyncClient, store: Store, token: str) -> None:
    _, text = await new_key(store)
    await log_in(locked, text)
    assert (await locked.post("/logout", data={"csrf_token": token})).status_code == 403


async def test_the_token_of_another_session_is_refused(locked: httpx.AsyncClient, store: Store) -> None:
    _, text = await new_key(store)
    await log_in(locked, text)
    old = token_in((await locked.get("/schedules")).text)
    locked.cookies.clear()
    await log_in(locked, text)
    assert (await locked.post("/logout", data={"csrf_token": old})).status_code == 403


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb"]
)
async def test_a_login_never_redirects_to_another_site(locked: httpx.AsyncClient, store: Store, target: str) -> None:
    _, text = await new_key(store)
    assert (await log_in(locked, text, target)).headers["location"] == "/"


async def test_a_server_without_keys_needs_no_login(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/schedules")).status_code == 200
    response = await browser.post("/logout", data={"csrf_token": "x"})
    assert response.status_code == 403

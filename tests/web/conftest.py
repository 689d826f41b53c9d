"""The dashboard in process over ASGI, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest

from everbeat.api.app import ApiContext, build_app
from everbeat.core.keys import ApiKey
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.access import Authenticator
from everbeat.services.keys import KeyService
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from everbeat.web.site import Site
from tests.api.conftest import ON_BOTH_STORES as ON_BOTH_STORES
from tests.api.conftest import make_context, store

__all__ = ["ON_BOTH_STORES", "store"]

HTML = {"accept": "text/html"}


@pytest.fixture
def context(store: Store) -> ApiContext:
    return make_context(store)


@pytest.fixture
def access(store: Store) -> Authenticator:
    return Authenticator(store, KeySessions(), is_required=True)


def make_browser(context: ApiContext) -> httpx.AsyncClient:
    """A client that keeps cookies, asks for pages and names its origin, as a browser does."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(cast(Any, build_app(context, pages=Site()))),
        base_url="http://localhost:8080",
        headers={**HTML, "origin": "http://localhost:8080", "sec-fetch-site": "same-origin"},
    )


@pytest.fixture
async def browser(context: ApiContext) -> AsyncIterator[httpx.AsyncClient]:
    """A browser on a server without keys."""
    async with make_browser(context) as browser:
        yield browser


@pytest.fixture
async def locked(context: ApiContext, access: Authenticator) -> AsyncIterator[httpx.AsyncClient]:
    """A browser on a server that requires keys."""
    async with make_browser(context._replace(access=access)) as browser:
        yield browser


async def new_key(store: Store, *scopes: str, **more: Any) -> tuple[ApiKey, str]:
    new = await KeyService(store).create(DEFAULT_TENANT, "somebody", scopes or ("manage",), **more)
    return new.key, new.text


def token_in(text: str) -> str:
    """The token of the first form of a page."""
    return text.partition('name="csrf_token" value="')[2].partition('"')[0]


async def log_in(browser: httpx.AsyncClient, key: str, next_: str = "/") -> httpx.Response:
    shown = await browser.get("/login")
    return await browser.post("/login", data={"csrf_token": token_in(shown.text), "key": key, "next": next_})


async def send(browser: httpx.AsyncClient, page: str, action: str, /, **fields: str) -> httpx.Response:
    """Send a form of a page to an action of the site."""
    shown = await browser.get(page)
    return await browser.post(action, data={"csrf_token": token_in(shown.text), **fields})

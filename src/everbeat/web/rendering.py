"""Rendering of pages: the Jinja environment, the headers of every page, redirects and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import jinja2

from everbeat.api.messages import ApiRequest, Response
from everbeat.core.access import Scope
from everbeat.version import __version__
from everbeat.web import formats, svg
from everbeat.web.forms import THEME_COOKIE, TOKEN_FIELD, cookie, csrf_token
from everbeat.web.static_files import static_url

MESSAGE_COOKIE = "everbeat_message"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"cache-control", b"no-store"),
    (b"vary", b"accept, cookie, hx-request"),
)
THEMES = ("auto", "light", "dark")

T = TypeVar("T")


@cache
def environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("everbeat.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.filters.update(formats.FILTERS)
    env.globals.update(static=static_url, version=__version__, svg=svg, scopes=Scope, themes=THEMES)
    return env


# One thread: pages are rendered beside the event loop, because a tick must not wait for a page, and one after the other.
_THREAD = ThreadPoolExecutor(1, "everbeat-pages")


async def rendered(work: Callable[[], T]) -> T:
    """Run a part of the rendering, such as a chart, beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


async def page(request: ApiRequest, template: str, /, status: int = 200, **values: Any) -> Response:
    """Render a template as a whole page, or as the part of it that htmx asked for, beside the event loop."""
    return await rendered(partial(page_now, request, template, status, **values))


def page_now(request: ApiRequest, template: str, /, status: int = 200, **values: Any) -> Response:
    """Render a template at once. For short pages, and where nothing can be awaited."""
    access = request.context.access
    is_part = is_partial(request)
    # A refresh of a part of the page before must not take the message of the next page.
    message = None if is_part else cookie(request, MESSAGE_COOKIE)
    theme = cookie(request, THEME_COOKIE)
    body = (
        environment()
        .get_template(template)
        .render(
            layout="part.html" if is_part else "base.html",
            path=request.path,
            query=request.scope["query_string"].decode("latin-1"),
            caller=request.caller,
            has_sessions=access is not None and access.is_required,
            is_partial=is_part,
            token=csrf_token(request),
            token_field=TOKEN_FIELD,
            theme=theme if theme in THEMES else "auto",
            message=None if message is None else unquote(message),
            can=lambda scope: scope in request.caller.scopes,
            **values,
        )
    )
    headers = list(_HEADERS)
    if message is not None:
        headers.append(set_cookie(MESSAGE_COOKIE, "", max_age=0))
    return Response(status, body.encode("utf-8", "replace"), headers)


def is_partial(request: ApiRequest) -> bool:
    """Whether htmx asked for a part of a page. A boosted link asks for a whole page."""
    return request.header(b"hx-request") == "true" and request.header(b"hx-boosted") is None


def is_refresh(request: ApiRequest) -> bool:
    """Whether an open page asks for its list again."""
    return is_partial(request) and request.header(b"hx-target") == "live"


def redirect(to: str, message: str | None = None, *, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    """Redirect after a form. The message is shown on the next page."""
    found = [(b"location", to.encode("latin-1")), (b"cache-control", b"no-store"), *headers]
    if message is not None:
        found.append(set_cookie(MESSAGE_COOKIE, quote(message[:500]), max_age=60))
    return Response(303, b"", found)


def set_cookie(name: str, value: str, *, max_age: int, is_secure: bool = False) -> tuple[bytes, bytes]:
    parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Strict", f"Max-Age={max_age}"]
    if is_secure:
        parts.append("Secure")
    return b"set-cookie", "; ".join(parts).encode("latin-1")


def local_path(text: str) -> str:
    """Return the text if it is a path of this site, and `/` otherwise, so that a link cannot redirect to another site."""
    is_safe = text.startswith("/") and not text.startswith(("//", "/\\")) and not any(ord(one) < 33 for one in text)
    return quote(text, safe="/?&=%:.-_~+,@") if is_safe else "/"

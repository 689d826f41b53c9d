"""Login and logout with an API key, and the theme. A login creates a session key that is revoked with the key of the login."""

from __future__ import annotations

from urllib.parse import parse_qs

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.middleware import client_address
from everbeat.api.operations import Operation
from everbeat.api.routing import get, post
from everbeat.core.errors import EverbeatError, TooManyRequests, Unauthenticated
from everbeat.web.forms import COOKIE, THEME_COOKIE, read_form
from everbeat.web.rendering import THEMES, local_path, page, redirect, set_cookie

SESSION_SECONDS = 8 * 3600
_YEAR_SECONDS = 365 * 86_400

_OPEN = Operation(id="web", tag="Dashboard", summary="A page of the dashboard", responses={}, scope=None)
_ANY_KEY = _OPEN._replace(for_any_key=True)


@get("/login", _OPEN)
async def show_login(request: ApiRequest) -> Response:
    return await page(request, "login.html", next=_next(request), error=None)


@post("/login", _OPEN)
async def log_in(request: ApiRequest) -> Response:
    form = await read_form(request)
    access = request.context.access
    to = local_path(form.text("next") or "/")
    if access is None or not access.is_required:
        return redirect(to)
    try:
        caller = await access.authenticate([b"Bearer " + form.text("key").encode("utf-8", "replace")], client_address(request))
        session = await request.context.keys.open_session(
            caller.with_request(request.request_id, client_address(request)), seconds=SESSION_SECONDS
        )
    except (Unauthenticated, TooManyRequests) as error:
        return await page(request, "login.html", 429 if isinstance(error, TooManyRequests) else 401, next=to, error=str(error))
    is_secure = request.scope["scheme"] == "https"
    return redirect(to, headers=(set_cookie(COOKIE, session.text, max_age=SESSION_SECONDS, is_secure=is_secure),))


@post("/logout", _ANY_KEY)
async def log_out(request: ApiRequest) -> Response:
    await read_form(request)
    try:
        await request.context.keys.end_session(request.caller)
    except EverbeatError:
        return redirect("/", "The session could not be ended, because the database is unavailable. Try again.")
    return redirect("/login", headers=(set_cookie(COOKIE, "", max_age=0),))


@post("/theme", _ANY_KEY)
async def set_theme(request: ApiRequest) -> Response:
    form = await read_form(request)
    theme = form.text("theme")
    headers = (set_cookie(THEME_COOKIE, theme, max_age=_YEAR_SECONDS),) if theme in THEMES else ()
    return redirect(local_path(form.text("next") or "/"), headers=headers)


def _next(request: ApiRequest) -> str:
    values = parse_qs(request.scope["query_string"].decode("latin-1")).get("next", ["/"])
    return local_path(values[0])


ROUTES = [show_login, log_in, log_out, set_theme]

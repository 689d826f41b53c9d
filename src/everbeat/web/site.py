"""The dashboard as a part of the server: which requests it serves, how they are authenticated, and how errors are shown."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from everbeat.api.messages import AnyResponse, ApiRequest, Response
from everbeat.api.operations import Operation
from everbeat.api.problems import UNAUTHENTICATED, ProblemKind
from everbeat.api.routing import Route, Router
from everbeat.core.errors import EverbeatError, InvalidInput
from everbeat.web import live, session_pages
from everbeat.web.forms import COOKIE, cookie
from everbeat.web.pages import PAGE_ROUTES
from everbeat.web.rendering import is_partial, page_now, redirect, set_cookie
from everbeat.web.shared_parts import SharedParts
from everbeat.web.static_files import serve_static, static_urls

_STATIC = Operation(id="web", tag="Dashboard", summary="A static file", responses={}, scope=None)


class Site:
    """The pages of the dashboard. `open_paths` need no key."""

    def __init__(self) -> None:
        static = [Route("GET", url, _STATIC, serve_static) for url in sorted(static_urls())]
        routes = (*session_pages.ROUTES, *static, *live.ROUTES, *PAGE_ROUTES)
        self._parts = SharedParts(Router(routes).handle)
        self._sections = frozenset(route.path.split("/")[1] for route in routes) - {""}
        self.open_paths = frozenset({"/login", *static_urls()})

    def serves(self, request: ApiRequest) -> bool:
        """Whether the request is for a page. `/` is a page for browsers, and JSON for other clients."""
        if request.path == "/":
            return "text/html" in (request.header(b"accept") or "") or request.header(b"hx-request") == "true"
        return request.path.split("/", 2)[1] in self._sections

    def credentials(self, request: ApiRequest) -> Sequence[bytes]:
        """The session cookie as an Authorization header. It is valid for pages only, among them `/live`."""
        if not self.serves(request):
            return ()
        value = cookie(request, COOKIE)
        return () if not value else (b"Bearer " + value.encode("latin-1"),)

    async def handle(self, request: ApiRequest) -> AnyResponse:
        return await self._parts.serve(request)

    def error_response(self, request: ApiRequest, kind: ProblemKind, error: Exception) -> Response:
        if kind is UNAUTHENTICATED:
            return _to_login(request)
        detail = str(error) if isinstance(error, EverbeatError) else "The error was logged. Report the request id."
        fields = error.errors if isinstance(error, InvalidInput) else ()
        return page_now(
            request, "error.html", kind.status, title=kind.title, detail=detail, fields=fields, request_id=request.request_id
        )


def _to_login(request: ApiRequest) -> Response:
    target = f"/login?next={quote(request.path)}" if request.method == "GET" else "/login"
    forget = set_cookie(COOKIE, "", max_age=0)
    if is_partial(request):
        return Response(200, b"", [(b"hx-redirect", target.encode("latin-1")), (b"cache-control", b"no-store"), forget])
    return redirect(target, headers=(forget,) if cookie(request, COOKIE) else ())

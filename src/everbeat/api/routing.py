"""The route table: which handler serves a path and a method.

Paths without parameters are looked up in a dictionary. Other paths are matched segment by segment in a tree, in which a literal
segment takes precedence over a parameter. Empty segments are ignored, so a trailing slash makes no difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from everbeat.api.authorization import check_scope
from everbeat.api.messages import AnyResponse, ApiRequest, Response
from everbeat.api.operations import Operation
from everbeat.api.problems import NOT_FOUND, WRONG_METHOD, HttpProblem

Handler = Callable[[ApiRequest], Awaitable[AnyResponse]]


class Route(NamedTuple):
    method: str
    path: str
    operation: Operation
    handle: Handler


def get(path: str, operation: Operation) -> Callable[[Handler], Route]:
    return lambda handle: Route("GET", path, operation, handle)


def post(path: str, operation: Operation) -> Callable[[Handler], Route]:
    return lambda handle: Route("POST", path, operation, handle)


def put(path: str, operation: Operation) -> Callable[[Handler], Route]:
    return lambda handle: Route("PUT", path, operation, handle)


def patch(path: str, operation: Operation) -> Callable[[Handler], Route]:
    return lambda handle: Route("PATCH", path, operation, handle)


def delete(path: str, operation: Operation) -> Callable[[Handler], Route]:
    return lambda handle: Route("DELETE", path, operation, handle)


class _Methods(dict[str, Route]):
    """The routes of one path by method; HEAD is served by GET."""

    allow: bytes

    def complete(self) -> None:
        if "GET" in self:
            self["HEAD"] = self["GET"]
        self.allow = ", ".join(sorted({*self, "OPTIONS"})).encode()


class _Segment:
    """One position in the tree of paths with parameters."""

    __slots__ = ("literals", "methods", "parameter", "parameter_name")

    def __init__(self) -> None:
        self.literals: dict[str, _Segment] = {}
        self.parameter: _Segment | None = None
        self.parameter_name = ""
        self.methods: _Methods | None = None

    def add(self, part: str) -> _Segment:
        if not part.startswith("{"):
            return self.literals.setdefault(part, _Segment())
        name = part.strip("{}")
        if self.parameter is None:
            self.parameter, self.parameter_name = _Segment(), name
        if self.parameter_name != name:
            raise ValueError(f"the path parameters {self.parameter_name} and {name} have the same position")
        return self.parameter


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._static: dict[str, _Methods] = {}
        self._root = _Segment()
        by_path: dict[str, _Methods] = {}
        for route in routes:
            methods = by_path.setdefault(route.path, _Methods())
            if route.method in methods:
                raise ValueError(f"two routes for {route.method} {route.path}")
            methods[route.method] = route
        for path, methods in by_path.items():
            methods.complete()
            if "{" not in path:
                self._static[path] = methods
            segment = self._root
            for part in _parts(path):
                segment = segment.add(part)
            segment.methods = methods

    async def handle(self, request: ApiRequest) -> AnyResponse:
        """Run the handler of the request. Raise an error if there is none, or if the caller does not have its scope."""
        methods = self._static.get(request.path)
        if methods is None:
            methods, request.path_params = self._find(request.path)
        route = methods.get(request.method)
        if route is None:
            return self._without_route(request, methods)
        if request.method != "PUT" and "\0" in request.path:  # no name has one, and PostgreSQL refuses to look for it
            raise HttpProblem(NOT_FOUND, "There is nothing with this name.")
        check_scope(request.caller, route.operation)
        return await route.handle(request)

    def _find(self, path: str) -> tuple[_Methods, Mapping[str, str]]:
        segment: _Segment | None = self._root
        params: dict[str, str] = {}
        for part in _parts(path):
            assert segment is not None
            child = segment.literals.get(part)
            if child is None and segment.parameter is not None:
                child = segment.parameter
                params[segment.parameter_name] = part
            if child is None:
                raise HttpProblem(NOT_FOUND, "This path does not exist.")
            segment = child
        if segment is None or segment.methods is None:
            raise HttpProblem(NOT_FOUND, "This path does not exist.")
        return segment.methods, params

    def _without_route(self, request: ApiRequest, methods: _Methods) -> Response:
        if request.method == "OPTIONS":
            return Response(204, b"", ((b"allow", methods.allow),))
        headers = {"Allow": methods.allow.decode()}
        raise HttpProblem(WRONG_METHOD, "The Allow header lists the methods of this path.", headers)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]

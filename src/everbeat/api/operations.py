"""Operations: what a route declares, such as the scope it requires, its parameters, its body and its responses.

The router checks the scope. The OpenAPI document is generated from the whole declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from everbeat.api.messages import JSON
from everbeat.core.access import Scope


class Body(NamedTuple):
    type: Any
    examples: Mapping[str, Any] = {}
    is_required: bool = True


class Success(NamedTuple):
    """A successful response. Without a type it has no body."""

    description: str
    type: Any = None
    headers: tuple[str, ...] = ()
    media_type: str = JSON
    links: Mapping[str, Any] = {}
    may_be_problem: bool = False
    example: Any = None


class PathParameter(NamedTuple):
    description: str
    schema: dict[str, Any]


class Operation(NamedTuple):
    """The declaration of one route.

    `scope` is the scope that a key needs; None if the route needs no key. `for_any_key`: every valid key is sufficient,
    regardless of its scopes. `problems` are the error statuses specific to this operation. The document also lists those that
    every request of this kind can get.
    """

    id: str
    tag: str
    summary: str
    responses: Mapping[int, Success]
    query: type[msgspec.Struct] | None = None
    body: Body | None = None
    headers: Mapping[str, tuple[str, dict[str, Any]]] = {}
    problems: tuple[int, ...] = ()
    path: Mapping[str, PathParameter] = {}
    description: str = ""
    scope: Scope | None = Scope.READ
    for_any_key: bool = False


IDEMPOTENCY: Mapping[str, tuple[str, dict[str, Any]]] = {
    "Idempotency-Key": (
        "For 24 hours, repeating the request with this key returns the same response. A different request with it is refused.",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    )
}

"""What a route declares about itself: the scope it requires, its parameters, its body and its responses.

The router checks the scope; the OpenAPI document is written from the rest.
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
    """One successful response; without a type it has no body."""

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
    """`scope` None: open to everybody, without a key. `for_any_key`: any valid key will do, whatever its scopes.

    `problems` are the statuses of this operation alone; those that every such request can get are added to the document.
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
        "The same key gives the same answer for 24 hours; with another body it is refused.",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    )
}

"""What a caller may ask for: every route's scope, checked for both doors from what its handler declares."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from everbeat.api.openapi import Operation
from everbeat.core.access import LOCAL_CALLER, Caller
from everbeat.core.errors import Forbidden
from everbeat.core.keys import GrantedScopes, scope_texts

# The `opt` of handlers that are no operation of the API, and that anybody with a valid key may ask.
FOR_ANY_KEY = {"for_any_key": True}


def check_scope(caller: Caller, operation: Operation) -> None:
    """Whether the caller may ask for this at all; whose data it is, is decided further in."""
    if operation.scope is None or operation.for_any_key or operation.scope in caller.scopes:
        return
    held = ", ".join(scope_texts(GrantedScopes(caller.scopes, caller.queues)))
    raise Forbidden(f"This needs an API key with the scope {operation.scope}; this one has {held}.")


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """The door of the framework. A handler that says nothing lets nobody in.

    Async although it waits for nothing: the framework would run it in a thread, for each request.
    """
    operation = handler.opt.get("operation")
    if isinstance(operation, Operation):
        check_scope(connection.scope["state"].get("caller", LOCAL_CALLER), operation)
    elif not handler.opt.get("for_any_key"):
        raise Forbidden("This route does not say who may ask for it.")

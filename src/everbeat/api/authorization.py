"""Authorization: whether the scopes of a caller allow an operation. The caller's tenant determines which data it can see."""

from __future__ import annotations

from everbeat.api.operations import Operation
from everbeat.core.access import Caller
from everbeat.core.errors import Forbidden
from everbeat.core.keys import GrantedScopes, scope_texts


def check_scope(caller: Caller, operation: Operation) -> None:
    """Raise Forbidden if the caller does not have the scope that the operation requires."""
    if operation.scope is None or operation.for_any_key or operation.scope in caller.scopes:
        return
    granted = ", ".join(scope_texts(GrantedScopes(caller.scopes, caller.queues)))
    raise Forbidden(f"This operation requires an API key with the scope {operation.scope}; this key has {granted}.")

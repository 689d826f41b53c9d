"""What every page declares: the scope that it needs. Pages are not part of the OpenAPI document."""

from __future__ import annotations

from everbeat.api.operations import Operation
from everbeat.core.access import Scope


def page_for(scope: Scope) -> Operation:
    return Operation(id="web", tag="Dashboard", summary="A page of the dashboard", responses={}, scope=scope)


READ = page_for(Scope.READ)
SUBMIT = page_for(Scope.SUBMIT)
MANAGE = page_for(Scope.MANAGE)
ADMIN = page_for(Scope.ADMIN)

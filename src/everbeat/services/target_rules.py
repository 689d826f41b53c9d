"""What the settings of this server allow in the targets of a tenant: broker connections, and kinds of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from uuid import UUID

from everbeat.core.brokers import Broker
from everbeat.core.errors import EverbeatError
from everbeat.core.targets import NO_RULES, TargetRules
from everbeat.core.webhook_addresses import PUBLIC_ONLY, WebhookRules
from everbeat.delivery.registry import TargetRegistry

RulesOf = Callable[[UUID], TargetRules]


class TenantNames(Protocol):
    def name_of(self, tenant_id: UUID) -> str | None: ...


def no_rules(_tenant_id: UUID) -> TargetRules:
    return NO_RULES


class TargetRulesOfTenants:
    """The rules of each tenant. The names of tenants are those that the directory of the node has read."""

    def __init__(
        self, brokers: Mapping[str, Broker], registry: TargetRegistry, names: TenantNames, webhooks: WebhookRules = PUBLIC_ONLY
    ) -> None:
        self._webhooks = webhooks
        self._brokers = brokers
        self._names = names
        self._custom = {kind: _checker(registry, kind) for kind in registry.custom_kinds()}

    def may_use(self, tenant_id: UUID, broker: str) -> bool:
        """Whether the tenant may use a connection. True for one that this node does not have, which is another error."""
        found = self._brokers.get(broker)
        return found is None or found.serves(self._names.name_of(tenant_id) or "")

    def of(self, tenant_id: UUID) -> TargetRules:
        tenant = self._names.name_of(tenant_id) or ""
        brokers = {one.name: one.kind for one in self._brokers.values() if one.serves(tenant)}
        return TargetRules(brokers, self._custom, self._webhooks)


def _checker(registry: TargetRegistry, kind: str) -> Callable[[Mapping[str, Any]], list[str]]:
    def check(options: Mapping[str, Any]) -> list[str]:
        try:
            return registry.target(kind).check(options)
        except (EverbeatError, ImportError) as error:
            return [str(error)]

    return check

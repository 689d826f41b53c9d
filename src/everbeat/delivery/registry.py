"""The kinds of targets that a node can deliver to: the built-in ones, and those of installed packages.

A package adds a kind with an entry point in the group `everbeat.targets`. Its name is the kind, and it refers to a function
that takes a TargetContext and returns a Target. Modules are imported when a kind is first used, so that a node needs only the
packages of the kinds that it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points

from everbeat.core.brokers import Broker
from everbeat.core.targets import TARGET_KINDS
from everbeat.delivery.base import HttpOptions, SettingMissing, Target, TargetContext, TargetFactory

GROUP = "everbeat.targets"
DEFAULT_HTTP_OPTIONS = HttpOptions()

# The module of each built-in kind. It has a function `make_target(context) -> Target`.
BUILT_IN: Mapping[str, str] = {
    "amqp": "everbeat.delivery.amqp",
    "celery": "everbeat.delivery.celery",
    "email": "everbeat.delivery.email",
    "http": "everbeat.delivery.http",
    "kafka": "everbeat.delivery.kafka",
    "nats": "everbeat.delivery.nats",
    "redis": "everbeat.delivery.redis",
    "slack": "everbeat.delivery.slack",
    "sqs": "everbeat.delivery.sqs",
}


class TargetRegistry:
    """Makes the targets of a node. `extra`: further kinds, in tests."""

    def __init__(
        self,
        brokers: Mapping[str, Broker],
        *,
        node_name: str = "everbeat",
        http: HttpOptions = DEFAULT_HTTP_OPTIONS,
        extra: Mapping[str, TargetFactory] | None = None,
    ) -> None:
        self._brokers = brokers
        self._node_name = node_name
        self._http = http
        self._extra = dict(extra or {})
        self._installed = {point.name: point for point in entry_points(group=GROUP) if point.name not in TARGET_KINDS}
        self._targets: dict[str, Target] = {}

    def custom_kinds(self) -> frozenset[str]:
        """Return the kinds that are not built in."""
        return frozenset({*self._installed, *self._extra} - set(TARGET_KINDS))

    def kinds(self) -> list[str]:
        """Return the kinds that this node delivers: http and slack, those of configured connections, and those of packages."""
        configured = {broker.kind for broker in self._brokers.values()}
        return sorted({"http", "slack", *configured, *self._installed, *self._extra})

    def target(self, kind: str) -> Target:
        """Return the target of a kind. Raises ExtraMissing if its packages are not installed."""
        target = self._targets.get(kind)
        if target is None:
            brokers = {name: broker for name, broker in self._brokers.items() if broker.kind == kind}
            target = self._targets[kind] = self._factory(kind)(TargetContext(brokers, self._node_name, self._http))
        return target

    def _factory(self, kind: str) -> TargetFactory:
        if kind in self._extra:
            return self._extra[kind]
        if kind in BUILT_IN:
            factory: TargetFactory = import_module(BUILT_IN[kind]).make_target
            return factory
        if kind in self._installed:
            loaded: TargetFactory = self._installed[kind].load()
            return loaded
        raise SettingMissing(f"this node cannot deliver to targets of the kind {kind}")

    async def close(self) -> None:
        targets, self._targets = self._targets, {}
        for target in targets.values():
            await target.close()

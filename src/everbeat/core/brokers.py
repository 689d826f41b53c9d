"""Broker connections: configured on the server by name, never by a tenant. Loading them, and their secrets, is in config.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """One `[brokers.NAME]` table of the settings file.

    `options`: the other keys of the table, with the secrets already read from the environment or from files. `tenants`: the
    names of the tenants that may use it; None: all tenants.
    """

    name: str
    kind: str
    options: Mapping[str, Any] = {}
    tenants: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"Broker(name={self.name!r}, kind={self.kind!r})"  # the options may contain secrets

    def serves(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants

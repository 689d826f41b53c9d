"""Converts API keys to table rows and back, for both dialects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everbeat.core.keys import ApiKey


def key_from_row(row: Mapping[str, Any]) -> ApiKey:
    fields = {name: value for name, value in row.items() if name != "moment"}
    return ApiKey(**{**fields, "scopes": tuple(row["scopes"].split()), "hash": bytes(row["hash"])})


def key_to_row(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "hash": key.hash,
        "hint": key.hint,
        "scopes": " ".join(key.scopes),
        "is_fleet": key.is_fleet,
        "expires_at": key.expires_at,
        "session_of": key.session_of,
    }


def is_last_admin(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a revocation leaves no key with the scope admin, or none that does not expire, where there was one before."""
    return any(before[kind] and not after[kind] for kind in ("usable", "lasting"))

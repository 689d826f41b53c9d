"""Converts ids, times and lists to SQLite values and back. SQLite has no types for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import apsw

from everbeat.store.rows import text_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


# A batch contains few distinct times, and each is converted many times.
@lru_cache(maxsize=8192)
def to_microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


@lru_cache(maxsize=8192)
def from_microseconds(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


def to_uuid(value: bytes) -> UUID:
    return UUID(bytes=value)


# For columns with few distinct ids.
@lru_cache(maxsize=1024)
def tenant_of(value: bytes) -> UUID:
    return UUID(bytes=value)


def hex_text(ids: Iterable[UUID]) -> str:
    """Ids in hex as a JSON array, because SQLite has no arrays."""
    return text_of([id_.hex for id_ in ids])


def bound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with lists converted to JSON, because SQLite has no arrays. Ids and bytes are in hex, times in microseconds."""
    return {name: text_of([*map(_item, value)]) if isinstance(value, list) else value for name, value in values.items()}


def _item(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, bytes):
        return value.hex()
    return to_microseconds(value) if isinstance(value, datetime) else value


def convert_binding(_cursor: apsw.Cursor, _number: int, value: Any) -> Any:
    """Convert a parameter that apsw cannot bind."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, datetime):
        return to_microseconds(value)
    raise TypeError(f"a {type(value).__name__} cannot be bound as an SQLite parameter")

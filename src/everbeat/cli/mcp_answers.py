"""Limits the size of what a tool returns: a model reads all of it, and payloads, logs and lists can be long."""

from __future__ import annotations

import json
from typing import Any

MAX_CHARACTERS = 24_000
MAX_STRING_CHARACTERS = 2_000
MAX_ITEMS = 100
DEFAULT_ITEMS = 20

_SHORT_STRING_CHARACTERS = 200


def item_limit(limit: int) -> int:
    return max(1, min(limit, MAX_ITEMS))


def bounded(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer with at most MAX_CHARACTERS. What was shortened or left out is named in it."""
    shortened: dict[str, Any] = _with_short_strings(answer, MAX_STRING_CHARACTERS)
    if _size(shortened) > MAX_CHARACTERS:
        shortened = _with_short_strings(answer, _SHORT_STRING_CHARACTERS)
    items = shortened.get("items")
    if isinstance(items, list):
        shortened = _with_fewer_items(shortened, items)
    if _size(shortened) <= MAX_CHARACTERS:
        return shortened
    text = json.dumps(shortened, ensure_ascii=False, default=str)
    return {"shortened": text[: MAX_CHARACTERS // 2], "note": f"the whole answer has {len(text)} characters"}


def _with_fewer_items(answer: dict[str, Any], items: list[Any]) -> dict[str, Any]:
    kept = items
    while len(kept) > 1 and _size({**answer, "items": kept}) > MAX_CHARACTERS:
        kept = kept[: len(kept) // 2]
    if len(kept) == len(items):
        return answer
    return {**answer, "items": kept, "left_out": f"{len(items) - len(kept)} more items; use filters or a lower limit"}


def _with_short_strings(value: Any, length: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= length else f"{value[:length]}… ({len(value) - length} more characters)"
    if isinstance(value, dict):
        return {_with_short_strings(name, length): _with_short_strings(each, length) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_short_strings(each, length) for each in value]
    return value


def _size(answer: dict[str, Any]) -> int:
    return len(json.dumps(answer, ensure_ascii=False, default=str))

"""The arguments of a task: bound to the signature of its handler, and converted to plain JSON types."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Mapping
from typing import Any

from everbeat.client.errors import InvalidArguments
from everbeat.core.definitions import MAX_DEPTH
from everbeat.core.names import is_encodable

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

_FIXES = {
    "datetime": "pass value.isoformat() and read it back with datetime.fromisoformat",
    "date": "pass value.isoformat() and read it back with date.fromisoformat",
    "time": "pass value.isoformat() and read it back with time.fromisoformat",
    "timedelta": "pass value.total_seconds()",
    "UUID": "pass str(value)",
    "Decimal": "pass str(value) to keep it exact, or float(value)",
    "Fraction": "pass str(value)",
    "PosixPath": "pass str(value)",
    "WindowsPath": "pass str(value)",
    "set": "pass a list, such as sorted(value)",
    "frozenset": "pass a list, such as sorted(value)",
    "bytes": "pass text, such as value.decode() or base64.b64encode(value).decode()",
    "bytearray": "pass text, such as base64.b64encode(value).decode()",
    "generator": "pass list(value)",
    "dict_keys": "pass list(value)",
    "dict_values": "pass list(value)",
    "coroutine": "await it first and pass the result",
    "complex": "pass [value.real, value.imag]",
}


def bind(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of a task: its arguments by name, as plain JSON. Default values are not part of it."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise InvalidArguments(f"{name}: {error}; it takes {takes}") from None
    given: dict[str, Any] = {}
    for parameter, value in bound.arguments.items():
        if signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD:
            given.update(value)
        else:
            given[parameter] = value
    return {parameter: to_json_value(value, f"{name}: the argument {parameter}") for parameter, value in given.items()}


def to_json_value(value: Any, path: str) -> Any:
    """The value as plain JSON types. Tuples become lists. Other types are rejected, with the path and a hint."""
    return _plain(value, path, 0)


def _plain(value: Any, path: str, depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        return _integer(value, path)
    if isinstance(value, float):
        return _number(float(value), path)
    if depth >= MAX_DEPTH:
        raise InvalidArguments(f"{path} is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if isinstance(value, dict):
        return {_key(key, path): _plain(item, f"{path}[{key!r}]", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise InvalidArguments(f"{path} is a {type(value).__name__}, which JSON cannot hold; {_hint(value)}")


def _text(value: str, path: str) -> str:
    if not is_encodable(value):
        raise InvalidArguments(f"{path} has half a surrogate pair, which UTF-8 cannot hold; encode it otherwise")
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def _integer(value: int, path: str) -> int:
    number = int(value)
    if not _SMALLEST <= number <= _LARGEST:
        raise InvalidArguments(f"{path} is an integer of more than 64 bits, which many readers of JSON spoil; pass str(value)")
    return number


def _number(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise InvalidArguments(f"{path} is {value}, which JSON cannot hold; pass None or leave it out")
    return value


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise InvalidArguments(f"{path} has the key {key!r} ({type(key).__name__}); keys in JSON are text: use str(key)")
    return _text(key, f"a key of {path}")


def _hint(value: Any) -> str:
    kind = type(value)
    if isinstance(value, enum.Enum):
        return "pass value.value or value.name"
    if hasattr(value, "_fields") and isinstance(value, tuple):
        return "pass value._asdict() or list(value)"
    if hasattr(kind, "__dataclass_fields__"):
        return "pass dataclasses.asdict(value)"
    if hasattr(kind, "model_dump"):
        return 'pass value.model_dump(mode="json")'
    if hasattr(kind, "__struct_fields__"):
        return "pass msgspec.to_builtins(value)"
    if kind.__module__.partition(".")[0] == "numpy":
        return "pass value.item() or value.tolist()"
    return _FIXES.get(kind.__name__, "pass text, numbers, lists and dicts; an id rather than an object")

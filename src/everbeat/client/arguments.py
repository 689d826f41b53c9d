"""Binds the arguments of a task to the signature of its handler and converts them to plain JSON types."""

from __future__ import annotations

import difflib
import enum
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from everbeat.client.annotations import Converter, Mismatch
from everbeat.client.errors import InvalidArguments
from everbeat.core.definitions import MAX_DEPTH
from everbeat.core.names import is_encodable

_NO_CONVERTERS: Mapping[str, Converter] = {}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

_HINTS = {
    "datetime": "annotate the parameter as datetime, or pass value.isoformat()",
    "date": "annotate the parameter as date, or pass value.isoformat()",
    "time": "annotate the parameter as time, or pass value.isoformat()",
    "timedelta": "annotate the parameter as timedelta, or pass value.total_seconds()",
    "UUID": "annotate the parameter as UUID, or pass str(value)",
    "Decimal": "annotate the parameter as Decimal, or pass str(value) to keep it exact",
    "Fraction": "pass str(value)",
    "PosixPath": "pass str(value)",
    "WindowsPath": "pass str(value)",
    "set": "pass a list, such as sorted(value)",
    "frozenset": "pass a list, such as sorted(value)",
    "bytes": "pass a string, such as value.decode() or base64.b64encode(value).decode()",
    "bytearray": "pass a string, such as base64.b64encode(value).decode()",
    "generator": "pass list(value)",
    "dict_keys": "pass list(value)",
    "dict_values": "pass list(value)",
    "coroutine": "await it first and pass the result",
    "complex": "pass [value.real, value.imag]",
}


def bind(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    converters: Mapping[str, Converter] = _NO_CONVERTERS,
) -> dict[str, Any]:
    """Return the payload of a task: its arguments by name, as plain JSON types. Default values are not included.

    Arguments with a converter are checked against the annotation of their parameter.
    """
    given = kwargs if not args and _binds_by_name(signature, kwargs) else _given(name, signature, args, kwargs)
    rest = next((one.name for one in signature.parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD), "")
    payload = {}
    for parameter, value in given.items():
        converter = converters.get(parameter) or converters.get(rest)
        if _is_plain(value, converter):
            payload[parameter] = value
            continue
        path = f"{name}: the argument {parameter}"
        is_default = parameter in signature.parameters and value is signature.parameters[parameter].default
        plain = value if converter is None or is_default else _checked(value, converter, path)
        payload[parameter] = to_json_value(plain, path)
    return payload


def _binds_by_name(signature: inspect.Signature, kwargs: Mapping[str, Any]) -> bool:
    """Whether the names are exactly those of the parameters, none of which is variable: the most frequent kind of call."""
    parameters = signature.parameters
    return kwargs.keys() == parameters.keys() and all(one.kind in _NAMED for one in parameters.values())


def _is_plain(value: Any, converter: Converter | None) -> bool:
    """Whether the value is a simple one of exactly the annotated type, which needs no conversion and no other check."""
    kind = type(value)
    if converter is not None and converter.plain_type is not kind:
        return False
    if kind is str:
        return bool(value.isascii())
    if kind is int:
        return bool(_SMALLEST <= value <= _LARGEST)
    return kind is bool or (kind is float and math.isfinite(value))


def _given(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name. Those of `**name` are among them."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"{name}: {call_problem(signature, len(args), kwargs) or error}") from None
    given: dict[str, Any] = {}
    for parameter, value in bound.arguments.items():
        if signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD:
            given.update(value)
        else:
            given[parameter] = value
    return given


def _checked(value: Any, converter: Converter, path: str) -> Any:
    try:
        return converter.to_json(value)
    except Mismatch as error:
        raise InvalidArguments(f"{path}: {error}") from None


def call_problem(signature: inspect.Signature, count: int, names: Iterable[str]) -> str | None:
    """Return why a call with `count` arguments by position and these by name does not match, or None if it does."""
    parameters = {name: one for name, one in signature.parameters.items() if one.kind is not inspect.Parameter.VAR_KEYWORD}
    takes_any = len(parameters) < len(signature.parameters)
    positional = [name for name, one in parameters.items() if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    named = list(names)
    unknown = [name for name in named if name not in parameters and not takes_any]
    twice = [name for name in named if name in positional[:count]]
    filled = {*positional[:count], *named}
    missing = [name for name, one in parameters.items() if one.default is one.empty and name not in filled]
    problems = [f"unknown argument {name}{_suggestion(name, parameters)}" for name in unknown]
    problems += [f"two values for the argument {name}" for name in twice]
    problems += [f"missing argument {name}" for name in missing]
    if count > len(positional):
        problems.append(f"{count} arguments by position, but it takes {len(positional)}")
    return f"{', '.join(problems)}; its parameters: {', '.join(signature.parameters) or 'none'}" if problems else None


def _suggestion(name: str, parameters: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(parameters), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def to_json_value(value: Any, path: str) -> Any:
    """Convert the value to plain JSON types. Tuples become lists. Other types raise InvalidArguments with a hint."""
    return _convert(value, path, 0)


def _convert(value: Any, path: str, depth: int) -> Any:
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
        return {_key(key, path): _convert(item, f"{path}[{key!r}]", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_convert(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise InvalidArguments(f"{path} is a {type(value).__name__}, which JSON cannot represent; {_hint(value)}")


def _text(value: str, path: str) -> str:
    if not is_encodable(value):
        raise InvalidArguments(f"{path} contains an unpaired surrogate, which UTF-8 cannot encode; remove or escape it")
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def _integer(value: int, path: str) -> int:
    number = int(value)
    if not _SMALLEST <= number <= _LARGEST:
        raise InvalidArguments(f"{path} is an integer of more than 64 bits, which many JSON parsers misread; pass str(value)")
    return number


def _number(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise InvalidArguments(f"{path} is {value}, which JSON cannot represent; pass None or omit it")
    return value


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise InvalidArguments(f"{path} has the key {key!r} ({type(key).__name__}); JSON keys are strings: use str(key)")
    return _text(key, f"a key of {path}")


def _hint(value: Any) -> str:
    kind = type(value)
    if isinstance(value, enum.Enum):
        return "pass value.value or value.name"
    if hasattr(value, "_fields") and isinstance(value, tuple):
        return "pass value._asdict() or list(value)"
    if hasattr(kind, "__dataclass_fields__"):
        return "annotate the parameter with its class, or pass dataclasses.asdict(value)"
    if hasattr(kind, "model_dump"):
        return 'pass value.model_dump(mode="json")'
    if hasattr(kind, "__struct_fields__"):
        return "annotate the parameter with its class, or pass msgspec.to_builtins(value)"
    if kind.__module__.partition(".")[0] == "numpy":
        return "pass value.item() or value.tolist()"
    return _HINTS.get(kind.__name__, "pass strings, numbers, lists and dicts, and an id instead of an object")

"""The annotations of a handler: converts its arguments and its result between Python types and JSON, by msgspec.

An annotation that msgspec does not support, or whose names cannot be resolved, is ignored: the value is passed as plain JSON.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec

RETURN = "return"
_PLAIN_TYPES = (str, int, float, bool)
_LEFT_ALONE = (Any, object, None, type(None), inspect.Parameter.empty)


class Mismatch(Exception):
    """A value does not have the annotated type. The text says what was expected and what was found, and where."""


class Converter:
    """Converts values of one annotation. `plain_type`: the type whose values need no conversion, if there is one."""

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self.plain_type: type | None = annotation if annotation in _PLAIN_TYPES else None

    def from_json(self, value: Any) -> Any:
        """Return the JSON value as the annotated type. Raises Mismatch."""
        try:
            return msgspec.convert(value, self._annotation, str_keys=True)
        except msgspec.ValidationError as error:
            raise Mismatch(_readable(error)) from None

    def to_json(self, value: Any) -> Any:
        """Return the value as plain JSON types, from which `from_json` makes the annotated type. Raises Mismatch."""
        try:
            plain = msgspec.to_builtins(value, str_keys=True)
        except TypeError:  # for example a handle, or a pydantic model; the caller names the type and gives a hint
            return value
        except (ValueError, RecursionError):
            return value
        try:
            self.from_json(plain)
        except Mismatch as error:
            # What was passed, not the JSON type that was made of it.
            raise Mismatch(re.sub(r", got \w+$", f", got {type(value).__name__}", str(error))) from None
        return plain


class HandlerTypes:
    """The converters of a handler's parameters and result. Resolved when first used: a module may define the types later."""

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature) -> None:
        self._function = function
        self._signature = signature

    @functools.cached_property
    def parameters(self) -> dict[str, Converter]:
        """The converters by parameter. Those of `**name` apply to every argument without a parameter of its own."""
        return self.resolve()

    @functools.cached_property
    def result(self) -> Converter | None:
        annotation = self._signature.return_annotation
        return _converters(self._function, {RETURN: annotation}).get(RETURN)

    @functools.cached_property
    def rest(self) -> str | None:
        """The name of the parameter that takes all other arguments (`**name`)."""
        names = (one.name for one in self._signature.parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD)
        return next(names, None)

    def resolve(self) -> dict[str, Converter]:
        return _converters(self._function, {name: one.annotation for name, one in self._signature.parameters.items()})

    def default_of(self, name: str) -> Any:
        parameter = self._signature.parameters.get(name)
        return inspect.Parameter.empty if parameter is None else parameter.default

    def convert(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a payload as the annotated types. Raises Mismatch, which names the argument."""
        converters = self.parameters
        if not converters:
            return arguments
        rest = converters.get(self.rest) if self.rest is not None else None
        converted = dict(arguments)
        for name, value in arguments.items():
            converter = converters.get(name, rest)
            if converter is None or converter.plain_type is type(value) or value is self.default_of(name):
                continue
            try:
                converted[name] = converter.from_json(value)
            except Mismatch as error:
                raise Mismatch(f"the argument {name}: {error}") from None
        return converted


def _converters(function: Callable[..., Any], annotations: Mapping[str, Any]) -> dict[str, Converter]:
    found = {name: one for name, one in annotations.items() if one not in _LEFT_ALONE}
    resolved = {name: _resolved(function, name, annotation) for name, annotation in found.items()}
    return {name: Converter(annotation) for name, annotation in resolved.items() if _is_supported(annotation)}


def _resolved(function: Callable[..., Any], name: str, annotation: Any) -> Any:
    """Return the annotation with its names resolved. Each is resolved alone, so that one unknown name affects no other."""
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    names = getattr(inner, "__globals__", {})
    try:
        hints = get_type_hints(SimpleNamespace(__annotations__={name: annotation}), globalns=names, include_extras=True)
    except Exception:
        return Any
    return hints[name]


def _is_supported(annotation: Any) -> bool:
    if annotation in _LEFT_ALONE:
        return False
    try:
        info = msgspec.inspect.type_info(annotation)
        msgspec.json.Decoder(annotation)
    except Exception:
        return False
    return not _has_custom_type(info, set())


def _has_custom_type(info: Any, seen: set[int]) -> bool:
    """Whether a type contains a class that msgspec does not know. `seen`: recursive types contain themselves."""
    if isinstance(info, msgspec.inspect.CustomType):
        return True
    if id(info) in seen:
        return False
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.Field):
        return _has_custom_type(info.type, seen)
    if not isinstance(info, msgspec.inspect.Type):
        return False
    parts = (getattr(info, field) for field in info.__struct_fields__)
    return any(_has_custom_type(one, seen) for part in parts for one in (part if isinstance(part, tuple) else (part,)))


def _readable(error: msgspec.ValidationError) -> str:
    """Return the message of msgspec without its path notation: `$.x[0]` is the part x[0] of the value."""
    message, _, path = str(error).replace("`", "").partition(" - at ")
    text = message[:1].lower() + message[1:]
    part = path.removeprefix("$").removeprefix(".")
    return f"{text} (in {part})" if part else text

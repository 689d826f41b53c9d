"""Response bodies for fake servers: every required field of a struct, with the given values."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect


def sample(type_: type[msgspec.Struct], **values: Any) -> dict[str, Any]:
    """Return a body that decodes as the struct. Fields without a given value get the simplest valid one."""
    made: dict[str, Any] = _value_of(inspect.type_info(type_))
    return {**made, **values}


def _value_of(type_: inspect.Type) -> Any:
    match type_:
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            made = {field.encode_name: _value_of(field.type) for field in fields if field.required}
            return made if tag_field is None else {tag_field: tag, **made}
        case inspect.UnionType(types=types):
            return None if any(isinstance(one, inspect.NoneType) for one in types) else _value_of(types[0])
        case inspect.Metadata(type=inner):
            return _value_of(inner)
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return False
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.DictType():
            return {}
        case inspect.ListType():
            return []
        case _:
            return None

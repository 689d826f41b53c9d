"""Query strings of pages. Unlike the API, a page ignores parameters that it does not know."""

from __future__ import annotations

from urllib.parse import parse_qsl

from everbeat.api.messages import ApiRequest

_MAX_PARAMETERS = 100


def query_of(request: ApiRequest) -> dict[str, str]:
    """The parameters that are not empty, without surrounding white space."""
    try:
        pairs = parse_qsl(request.scope["query_string"].decode(), max_num_fields=_MAX_PARAMETERS)
    except (UnicodeDecodeError, ValueError):
        return {}
    return {name: value.strip() for name, value in pairs if value.strip()}

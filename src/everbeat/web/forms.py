"""Forms of the dashboard: reading them, and the checks that another site cannot send them.

A form carries a token derived from the session cookie, which another site cannot read. The cookie itself is SameSite=Strict.
A server without keys has no sessions; there the middleware checks the Host and Origin headers.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from everbeat.api.bodies import read_form_body
from everbeat.api.messages import ApiRequest
from everbeat.api.problems import FORBIDDEN, MALFORMED, HttpProblem

COOKIE = "everbeat_session"
THEME_COOKIE = "everbeat_theme"
TOKEN_FIELD = "csrf_token"
TOKEN_HEADER = b"x-csrf-token"

_MAX_FIELDS = 2000
_FORGED = "The form is no longer valid. Reload the page and try again."


class Form(Mapping[str, str]):
    """The fields of a form. Of a repeated field, the mapping has the last value and `all` has every value."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs
        self._last = dict(pairs)

    def __getitem__(self, name: str) -> str:
        return self._last[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def text(self, name: str) -> str:
        """The value without surrounding white space; an empty string if the field is absent."""
        return self._last.get(name, "").strip()

    def is_set(self, name: str) -> bool:
        return bool(self.text(name))


def cookie(request: ApiRequest, name: str) -> str | None:
    for header in request.header_values(b"cookie"):
        for part in header.decode("latin-1").split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                return value
    return None


def csrf_token(request: ApiRequest) -> str:
    secret = cookie(request, COOKIE) or ""
    return hmac.new(secret.encode("latin-1"), b"everbeat csrf", hashlib.sha256).hexdigest()


async def read_form(request: ApiRequest) -> Form:
    """Read the form of a request that this site sent. Raises HttpProblem for any other request."""
    _check_same_origin(request)
    raw = await read_form_body(request)
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except (UnicodeDecodeError, ValueError):
        raise HttpProblem(MALFORMED, "The form is not valid.") from None
    form = Form(pairs)
    sent = request.header(TOKEN_HEADER) or form.get(TOKEN_FIELD, "")
    if not hmac.compare_digest(sent.encode("utf-8", "replace"), csrf_token(request).encode()):
        raise HttpProblem(FORBIDDEN, _FORGED)
    return form


def _check_same_origin(request: ApiRequest) -> None:
    site = request.header(b"sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise HttpProblem(FORBIDDEN, _FORGED)
    origin = request.header(b"origin")
    if origin is not None and urlsplit(origin).netloc.lower() != (request.header(b"host") or "").lower():
        raise HttpProblem(FORBIDDEN, _FORGED)

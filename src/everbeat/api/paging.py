"""Query strings: strict parameters, opaque cursors and times."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec

from everbeat.api.messages import ApiRequest
from everbeat.api.problems import MALFORMED, HttpProblem
from everbeat.core.definitions import convert, rfc3339, utc
from everbeat.core.errors import InvalidInput
from everbeat.core.names import is_name
from everbeat.services.time_slices import TimeSlices

MAX_LIMIT = 1000
MAX_PAGE_BYTES = 4 * 1024 * 1024
NAME_PATTERN = "^[A-Za-z0-9._:-]+$"

Absent = msgspec.UnsetType
NameText = Annotated[
    str, msgspec.Meta(extra_json_schema={"pattern": NAME_PATTERN, "minLength": 1, "maxLength": 200, "type": "string"})
]
TimeText = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
Q = TypeVar("Q", bound=msgspec.Struct)
Item = TypeVar("Item")
R = TypeVar("R")

_MAX_PARAMETERS = 100
_FIRST_PORTION, _MAX_PORTION = 25, 200
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LOST_PLUS = re.compile(r"(.*:\d\d(?:\.\d+)?) (\d\d:?\d\d)")
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT, description="The maximum number of items to return.")] = 50
    cursor: (
        Annotated[
            str,
            msgspec.Meta(
                description="The next_cursor of the previous page.",
                extra_json_schema={"minLength": 1, "maxLength": 500, "pattern": "^[A-Za-z0-9_-]+$"},
            ),
        ]
        | Absent
    ) = msgspec.UNSET


class WindowQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    from_: Annotated[TimeText, msgspec.Meta(description="The start of the window, inclusive.")] | Absent = msgspec.field(
        default=msgspec.UNSET, name="from"
    )
    to: Annotated[TimeText, msgspec.Meta(description="The end of the window, exclusive.")] | Absent = msgspec.UNSET


def parse_query(request: ApiRequest, type_: type[Q]) -> Q:
    """Return the query string as this struct. If a parameter is repeated, its last value is used."""
    query = request.scope["query_string"]
    if not query:
        return msgspec.convert({}, type_)
    try:
        text = query.decode()
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS)
    except UnicodeDecodeError:
        raise HttpProblem(MALFORMED, "The query string is not valid UTF-8.") from None
    except ValueError:
        raise HttpProblem(MALFORMED, f"The query string has more than {_MAX_PARAMETERS} parameters.") from None
    values: dict[str, str | int] = dict(pairs)
    limit = values.get("limit")
    if isinstance(limit, str) and _INTEGER.fullmatch(limit):
        values["limit"] = int(limit)
    return convert(values, type_)


def given(value: str | Absent) -> str | None:
    return None if isinstance(value, Absent) else value


def optional_name(field: str, value: str | Absent) -> str | None:
    if isinstance(value, Absent):
        return None
    if not is_name(value):
        raise InvalidInput.of(field, "must be 1 to 200 characters: letters A-Z and a-z, digits, and . _ : -")
    return value


def optional_time(field: str, value: str | Absent) -> datetime | None:
    return None if isinstance(value, Absent) else parse_instant(field, value)


def parse_instant(field: str, text: str) -> datetime:
    """Parse a time of a query string, in which an unescaped plus arrives as a space."""
    if match := _LOST_PLUS.fullmatch(text):
        text = f"{match[1]}+{match[2]}"
    try:
        at = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        raise InvalidInput.of(field, "must be a time such as 2026-01-31T09:00:00Z") from None
    if at.tzinfo is None:
        raise InvalidInput.of(field, "needs an offset from UTC, such as Z or +01:00")
    return bounded(field, utc(at, field))


def bounded(field: str, at: datetime) -> datetime:
    """Return the time, or refuse one so close to the limits of datetime that an addition could overflow."""
    if not _EARLIEST <= at < _LATEST:
        raise InvalidInput.of(field, "must be in the years 1970 to 9998")
    return at


def name_cursor(name: str) -> str:
    return _encoded(f"n{name}")


def name_after(cursor: str | Absent) -> str | None:
    if isinstance(cursor, Absent):
        return None
    kind, name = _decoded(cursor)
    if kind != "n" or not is_name(name):
        raise _bad_cursor()
    return name


def time_cursor(at: datetime) -> str:
    return _encoded(f"t{rfc3339(at)}")


def time_after(cursor: str | Absent) -> datetime | None:
    if isinstance(cursor, Absent):
        return None
    kind, text = _decoded(cursor)
    if kind != "t":
        raise _bad_cursor()
    try:
        return parse_instant("cursor", text)
    except InvalidInput:
        raise _bad_cursor() from None


def id_cursor(id_: UUID) -> str:
    return _encoded(f"i{id_}")


def id_after(cursor: str | Absent) -> UUID | None:
    if isinstance(cursor, Absent):
        return None
    kind, text = _decoded(cursor)
    id_ = uuid_of(text)
    if kind != "i" or id_ is None:
        raise _bad_cursor()
    return id_


def time_id_cursor(died_at: datetime, task_id: UUID) -> str:
    return _encoded(f"d{rfc3339(died_at)}/{task_id}")


def time_id_before(cursor: str | Absent) -> tuple[datetime, UUID] | None:
    if isinstance(cursor, Absent):
        return None
    kind, text = _decoded(cursor)
    at, _, id_text = text.partition("/")
    task_id = uuid_of(id_text)
    if kind != "d" or task_id is None:
        raise _bad_cursor()
    try:
        return parse_instant("cursor", at), task_id
    except InvalidInput:
        raise _bad_cursor() from None


def word_id_cursor(word: str, id_: UUID) -> str:
    return _encoded(f"w{word}/{id_}")


def word_id_after(cursor: str | Absent, words: Collection[str]) -> tuple[str, UUID] | None:
    if isinstance(cursor, Absent):
        return None
    kind, text = _decoded(cursor)
    word, _, id_text = text.partition("/")
    id_ = uuid_of(id_text)
    if kind != "w" or word not in words or id_ is None:
        raise _bad_cursor()
    return word, id_


def number_cursor(number: int) -> str:
    return _encoded(f"f{number}")


def number_after(cursor: str | Absent) -> int | None:
    if isinstance(cursor, Absent):
        return None
    kind, text = _decoded(cursor)
    if kind != "f" or not _INTEGER.fullmatch(text):
        raise _bad_cursor()
    return int(text)


def uuid_of(text: str) -> UUID | None:
    """Parse an id in the format that responses use. Return None for anything else."""
    return UUID(text) if _UUID.fullmatch(text) else None


def split_page(found: Sequence[Item], limit: int) -> tuple[Sequence[Item], Item | None]:
    """Return the page, and its last item if there are more. `found` was queried with one item more than the limit."""
    return (found[:limit], found[limit - 1]) if len(found) > limit else (found, None)


class PageCollector(Generic[Item, R]):
    """Collects the responses of a page of large items, until it has as many items or bytes as it may have.

    `fetch` returns a number of items after the given one. They are fetched in portions, so that the items of a page do not need
    much memory, and the tick loop of this process does not have to wait.
    """

    def __init__(
        self,
        fetch: Callable[[Item | None, int], Awaitable[Sequence[Item]]],
        size_of: Callable[[Item], int],
        respond: Callable[[Item], R],
    ) -> None:
        self._fetch = fetch
        self._size_of = size_of
        self._respond = respond

    async def collect(self, limit: int) -> tuple[list[R], Item | None]:
        """Return the responses, and the last item if there are more."""
        responses: list[R] = []
        last: Item | None = None
        size, portion, slices = 0, _FIRST_PORTION, TimeSlices()
        while True:
            wanted = min(portion, limit - len(responses))
            found = await self._fetch(last, wanted + 1)
            for item in found[:wanted]:
                await slices.pause()
                size += self._size_of(item)
                if responses and size > MAX_PAGE_BYTES:
                    return responses, last
                responses.append(self._respond(item))
                last = item
            if len(found) <= wanted:
                return responses, None
            if len(responses) >= limit:
                return responses, last
            portion = min(_MAX_PORTION, 1 + (MAX_PAGE_BYTES - size) * len(responses) // max(size, 1))


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decoded(cursor: str) -> tuple[str, str]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (UnicodeError, binascii.Error):
        raise _bad_cursor() from None
    return text[:1], text[1:]


def _bad_cursor() -> InvalidInput:
    return InvalidInput.of("cursor", "is not a cursor of this list; pass a next_cursor back unchanged")

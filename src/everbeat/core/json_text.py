"""Checks JSON text without building its values, and finds where the items of a list and their payloads are.

msgspec checks the grammar of `msgspec.Raw` values quickly, but not everything that it checks when it builds values: invalid
UTF-8 and numbers out of range remain, and it never refuses duplicate keys. What is added here needs memory only for the keys of
the objects that are open at the same time. It takes up to a second for 12 MB, so large bodies are checked in another process.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

SPAN_FIELDS = 5

_SPACE = rb"[ \t\n\r]*+"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# What contains no keys is skipped: scalars, lists of scalars, and objects with one key and a scalar.
_LEAF = rb"\[(?:[^\"{}\[\]]++|%b)*+\]" % _STRING
_PAIR = rb"\{%b(?:%b%b:%b(?:[^\"{}\[\],]++|%b)%b)?+\}" % (_SPACE, _STRING, _SPACE, _SPACE, _STRING, _SPACE)
_SKIPPED = rb'(?:[^"{}\[\]]++|%b|%b|%b(?!%b:))*+' % (_LEAF, _PAIR, _STRING, _SPACE)
_next_token = re.compile(rb"%b(?:([{}\[\]])|(%b)%b:)" % (_SKIPPED, _STRING, _SPACE), re.DOTALL).match
_key_at = re.compile(rb"%b(?:,%b)?+(%b)%b:%b" % (_SPACE, _SPACE, _STRING, _SPACE, _SPACE), re.DOTALL).match
_item_at = re.compile(rb"%b(?:,%b)?+(?=[^\] \t\n\r])" % (_SPACE, _SPACE)).match
_scalar_at = re.compile(rb'%b|[^"{}\[\], \t\n\r]++' % _STRING, re.DOTALL).match
_space_at = re.compile(_SPACE).match
_large_exponent = re.compile(rb"[eE]\+?0*+(?:[1-9]\d{3}|[3-9]\d\d)").search
_tiny_numbers = re.compile(rb"[eE]-\d{3}").findall
_numbers = re.compile(rb"%b|(-?\d[\d.eE+-]*+)" % _STRING, re.DOTALL).finditer
_brackets = re.compile(rb'[^"{}\[\]]++|%b|([{\[])|[}\]]' % _STRING, re.DOTALL).finditer

_raw_decode = msgspec.json.Decoder(msgspec.Raw).decode
_list_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode
_fields_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_OPENING = b"{["
_NOTHING = (0, 0, 0)
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_MANY_ZEROS = b"0" * 300
_LONG_INTEGER = b"0" * 100
_MAX_TINY_NUMBERS = 200
# CPython limits the conversion of longer texts, and msgspec refuses them.
_MAX_INTEGER_DIGITS = 4300
# A value of this size may be built: it needs at most 30 MB.
_MAX_BUILT_BYTES = 1024 * 1024


Opaque = tuple[int, int, int]


class BadJson(Exception):
    """The text is not JSON, or not JSON that is accepted. The message completes a sentence about the body."""


class JsonOutline(NamedTuple):
    """Where the items of a body are: for each item its start and end, and the start and end of its opaque field.

    Then follows 1 if the opaque field is nested too deeply, otherwise 0. If the field is missing or small, its start and end
    are equal. Without a list of items, the whole body is the only item, and `list_start` and `list_end` are equal.
    `is_complete` is False if there are more items than allowed.
    """

    spans: Sequence[int]
    list_start: int = 0
    list_end: int = 0
    is_complete: bool = True

    def __len__(self) -> int:
        return len(self.spans) // SPAN_FIELDS


def check_json(raw: bytes) -> None:
    """Raise BadJson unless this is valid JSON in UTF-8 without duplicate keys and numbers out of range."""
    check_grammar(raw)
    if has_unique_keys(raw):
        return
    start = _after_space(raw, 0)
    if raw[start] in _OPENING:
        _end_of_container(raw, start)


def check_grammar(raw: bytes) -> None:
    """Raise BadJson as `check_json` does, except for duplicate keys."""
    try:
        if not raw.isascii():
            raw.decode()
        _raw_decode(raw)
    except UnicodeDecodeError:
        raise BadJson("is not valid UTF-8") from None
    except RecursionError:
        raise BadJson("is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadJson(f"is not valid JSON: {error}") from None
    if _large_exponent(raw) or _MANY_ZEROS in raw.translate(_DIGITS_AS_ZERO):
        _check_numbers(raw)


def has_unique_keys(raw: bytes) -> bool:
    """Whether small valid JSON certainly has no duplicate keys, because encoding its values again results in the same text."""
    if len(raw) > _MAX_BUILT_BYTES:
        return False
    try:
        encoded = _encode(_decode(raw))
        return encoded == raw or encoded == msgspec.json.format(raw, indent=-1)
    except (RecursionError, msgspec.MsgspecError, ValueError):
        return False


def has_slow_numbers(raw: bytes) -> bool:
    """Whether this may have numbers that take much longer to decode than their size suggests.

    These are long integers, and many tiny numbers such as 1e-300: a number of those takes 5 µs, others 0.02 µs.
    """
    if _LONG_INTEGER in raw.translate(_DIGITS_AS_ZERO):
        return True
    return (b"e-" in raw or b"E-" in raw) and len(_tiny_numbers(raw)) > _MAX_TINY_NUMBERS


def outline(
    raw: bytes,
    list_field: str | None,
    opaque_field: str | None,
    *,
    max_items: int,
    min_opaque_bytes: int,
    max_opaque_depth: int | None,
) -> JsonOutline:
    """Check a body, and return the outline of it. Raises BadJson."""
    check_grammar(raw)
    scanner = _Scanner(raw, opaque_field, min_opaque_bytes, max_opaque_depth, has_unique_keys(raw))
    start = _after_space(raw, 0)
    if raw[start : start + 1] != b"{":
        return JsonOutline(array("Q", (start, scanner.end_of_value(start), *_NOTHING)))
    if list_field is None:
        end, opaque = scanner.scan_object(start)
        return JsonOutline(array("Q", (start, end, *opaque)))
    found, position, seen = JsonOutline(()), start + 1, set[bytes]()
    while match := _key_at(raw, position):
        key, position = _add_key(seen, match[1]), match.end()
        if key == list_field.encode() and raw[position : position + 1] == b"[":
            found = scanner.scan_items(position, list_field, max_items)
            if not found.is_complete:
                return found
            position = found.list_end
        else:
            position = scanner.end_of_value(position)
    return found if found.list_end else JsonOutline(array("Q", (start, _after_space(raw, position) + 1, *_NOTHING)))


def is_nested_deeper(raw: bytes, depth: int) -> bool:
    """Whether valid JSON has more than this number of levels of lists and objects."""
    # Most values have fewer brackets than the allowed number of levels.
    if raw.count(b"{") + raw.count(b"[") <= depth:
        return False
    start = _after_space(raw, 0)
    return raw[start] in _OPENING and _end_of_container(raw, start, depth, checks_keys=False)[1]


class _Scanner:
    """Goes through the items of a body. `is_unique`: it is already known that no object has duplicate keys."""

    def __init__(
        self, raw: bytes, opaque_field: str | None, min_opaque_bytes: int, max_opaque_depth: int | None, is_unique: bool
    ) -> None:
        self._raw = raw
        self._opaque_field = None if opaque_field is None else opaque_field.encode()
        self._min_opaque_bytes = min_opaque_bytes
        self._max_opaque_depth = max_opaque_depth
        self._is_unique = is_unique

    def scan_object(self, start: int) -> tuple[int, Opaque]:
        """Return the end of the object that begins here, and where its opaque field is."""
        raw, opaque, position, seen = self._raw, _NOTHING, start + 1, set[bytes]()
        while match := _key_at(raw, position):
            key, begin = _add_key(seen, match[1]), match.end()
            if key == self._opaque_field and raw[begin] in _OPENING:
                position, is_deep = _end_of_container(raw, begin, self._max_opaque_depth)
            else:
                position, is_deep = self.end_of_value(begin), False
            if key == self._opaque_field and position - begin >= self._min_opaque_bytes:
                opaque = (begin, position, int(is_deep))
        return _after_space(raw, position) + 1, opaque

    def scan_items(self, start: int, list_field: str, max_items: int) -> JsonOutline:
        """Return the outline of the list that begins here."""
        if self._is_unique:
            return self._measure_items(start, _fields_decode(self._raw)[list_field], max_items)
        raw, position, spans = self._raw, start + 1, array("Q")
        while match := _item_at(raw, position):
            if len(spans) >= max_items * SPAN_FIELDS:
                return JsonOutline((), is_complete=False)
            position = match.end()
            if raw[position : position + 1] == b"{":
                end, opaque = self.scan_object(position)
            else:
                end, opaque = self.end_of_value(position), _NOTHING
            spans.extend((position, end, *opaque))
            position = end
        return JsonOutline(spans, start, _after_space(raw, position) + 1)

    def _measure_items(self, start: int, text: msgspec.Raw, max_items: int) -> JsonOutline:
        """Do the same for a small list without duplicate keys: only items with a large opaque field are scanned."""
        raw, position, spans = self._raw, start + 1, array("Q")
        items = _list_decode(text)
        if len(items) > max_items:
            return JsonOutline((), is_complete=False)
        for item in items:
            match = _item_at(raw, position)
            assert match is not None
            begin, position = match.end(), match.end() + len(item)
            is_large = len(item) >= self._min_opaque_bytes and raw[begin : begin + 1] == b"{"
            spans.extend((begin, position, *(self.scan_object(begin)[1] if is_large else _NOTHING)))
        return JsonOutline(spans, start, start + len(text))

    def end_of_value(self, position: int) -> int:
        if self._raw[position] in _OPENING:
            return _end_of_container(self._raw, position)[0]
        match = _scalar_at(self._raw, position)
        assert match is not None
        return match.end()


def _end_of_container(raw: bytes, position: int, max_depth: int | None = None, *, checks_keys: bool = True) -> tuple[int, bool]:
    """Check the keys of the list or object that begins here. Return its end, and whether it has too many levels."""
    max_depth = len(raw) if max_depth is None else max_depth
    is_deep = False
    # The keys of each open object; None for a list. The container itself must not be skipped as a whole.
    opened: list[set[bytes] | None] = [set() if raw[position : position + 1] == b"{" else None]
    position += 1
    while opened:
        match = _next_token(raw, position)
        assert match is not None
        # What was skipped has one more level, if it has any brackets.
        if len(opened) >= max_depth and not is_deep:
            is_deep = len(opened) > max_depth or any(
                one[1] for one in _brackets(raw, position, match.start(match.lastindex or 0))
            )
        position, token = match.end(), match[1]
        if token is None:
            keys = opened[-1]
            assert keys is not None
            if checks_keys:
                _add_key(keys, match[2])
        elif token == b"{":
            opened.append(set())
        elif token == b"[":
            opened.append(None)
        else:
            opened.pop()
    return position, is_deep


def _add_key(seen: set[bytes], text: bytes) -> bytes:
    key: bytes = text[1:-1]
    if b"\\" in key:
        key = _decode(text).encode()
    if key in seen:
        shown = key.decode()[:100]
        raise BadJson(f'has an object with the key "{shown}" more than once')
    seen.add(key)
    return key


def _check_numbers(raw: bytes) -> None:
    for match in _numbers(raw):
        number = match[1]
        if number is None:
            continue
        if math.isinf(float(number)) and not (number.lstrip(b"-").isdigit() and len(number) <= _MAX_INTEGER_DIGITS):
            raise BadJson("is not valid JSON: Number out of range")


def _after_space(raw: bytes, position: int) -> int:
    match = _space_at(raw, position)
    assert match is not None
    return match.end()

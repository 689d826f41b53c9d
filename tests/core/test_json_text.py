"""Checks of JSON text: the same texts are accepted as when values are built, and the outline says where its parts are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everbeat.core import json_text
from everbeat.core.json_text import SPAN_FIELDS, BadJson, JsonOutline, check_json, is_nested_deeper, outline

TEXTS = [
    *(
        b"0",
        b"-0",
        b"01",
        b"1.",
        b"1.5e",
        b"-",
        b"1e5",
        b"1E+5",
        b"9e300",
        b"1e308",
        b"1e309",
        b"-1e999",
        b"0e999",
        b"1e0000400",
    ),
    *(b"9" * 30, b"9" * 4300, b"9" * 4301, b"0." + b"1" * 6000, b"[1e400]", b'"1e400"', b'{"1e400":0}', b"1" * 5000),
    *(b"NaN", b"Infinity", b"tru", b"null", b"", b" ", b"[1,]", b"[1 2]", b'{"a"}', b"{1:2}", b"[[}", b"[]]", b"\xef\xbb\xbf1"),
    *(b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\ude00\\ud83d"', b'"\\x"', b'"\x01"', b'"\\u00zz"'),
    *(b'{"a":1,"a":2}', b'[{"a":[{"b":1,"\\u0062":2}]}]', b'{"a":{},"b":{},"a":0}', b'{"a":{"a":{"a":[{"a":0}]}}}'),
    *(
        b'{"a" : 1 , "b":[ {"c":1}, {"c":1} ] }',
        b'{"\\"":1,"\\\\":2,"x":"\\""}',
    ),
    *(
        b'{"a":"}","b":"]{[","c":["\\"","{"]}',
        b'[{"":1,"":1}]',
    ),
    *(
        b"[" * 500 + b"]" * 500,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b'[{"a":{}},{"a":[],"b":{}}]',
    ),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
# Few characters, so that many texts are nearly valid and many keys are equal.
FRAGMENTS = st.lists(
    st.sampled_from([*"{}[],: \\", '"a"', '"a":', '"b":', '"\\u0061":', "0", "1e9", '"', "[]", "{}"]), max_size=14
)


def is_accepted(raw: bytes) -> bool:
    """Whether msgspec builds the value, and no object has duplicate keys."""

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    try:
        msgspec.json.decode(raw)
        json.loads(raw, object_pairs_hook=check)
    except (msgspec.MsgspecError, ValueError, RecursionError, AssertionError):
        return False
    return True


def is_checked(raw: bytes) -> bool:
    try:
        check_json(raw)
    except BadJson:
        return False
    return True


@pytest.fixture(params=["built", "scanned"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small texts are built by default. The tests also scan them, as large ones are."""
    if request.param == "scanned":
        monkeypatch.setattr(json_text, "_MAX_BUILT_BYTES", -1)


def test_a_text_is_refused_or_found_to_be_nested_too_deeply() -> None:
    """How deep a text may be that msgspec decodes depends on the version of Python."""
    raw = b"[" * 100_000 + b"]" * 100_000
    assert not is_checked(raw) or is_nested_deeper(raw, 64)


@pytest.mark.parametrize("raw", TEXTS, ids=range(len(TEXTS)))
def test_the_same_texts_are_accepted_as_when_values_are_built(raw: bytes) -> None:
    assert is_checked(raw) == is_accepted(raw)


@given(fragments=FRAGMENTS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_random_texts_are_accepted_as_when_values_are_built(fragments: list[str]) -> None:
    raw = "".join(fragments).encode()
    assert is_checked(raw) == is_accepted(raw)


@given(
    values=st.lists(st.dictionaries(st.sampled_from(["a", "payload", '"']), VALUES), max_size=4),
    indent=st.sampled_from([None, 1]),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_the_outline_says_where_items_and_payloads_are(values: list[dict[str, Any]], indent: int | None) -> None:
    raw = json.dumps({"before": [{}], "tasks": values, "after": 1}, indent=indent).encode()
    found = outline(raw, "tasks", "payload", max_items=4, min_opaque_bytes=2, max_opaque_depth=5)
    assert json.loads(raw[found.list_start : found.list_end]) == values
    for value, (start, end, payload_start, payload_end, _) in zip(values, spans_of(found), strict=True):
        assert json.loads(raw[start:end]) == value
        if payload_end:
            assert json.loads(raw[payload_start:payload_end]) == value["payload"]
        else:
            assert len(json.dumps(value.get("payload", 0))) < 2


@given(value=VALUES, depth=st.integers(0, 6))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_levels_are_counted(value: Any, depth: int) -> None:
    raw = json.dumps(value).encode()
    found = outline(b'{"payload":%b}' % raw, None, "payload", max_items=0, min_opaque_bytes=0, max_opaque_depth=depth)
    assert is_nested_deeper(raw, depth) == (levels(value) > depth) == bool(found.spans[-1])


def levels(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(levels, children), default=0)


@pytest.mark.parametrize("text", ["[]", "[1]", '"x"', '{"tasks":1}', '{"tasks":{}}', "{}", ' {"a":[{}]} '])
def test_a_body_without_a_list_of_items_is_one_item(text: str) -> None:
    found = outline(text.encode(), "tasks", "payload", max_items=4, min_opaque_bytes=0, max_opaque_depth=None)
    ((start, end, *_),) = spans_of(found)
    assert (text[start:end], found.list_end) == (text.strip(), 0)


def test_too_many_items_are_reported_without_their_spans() -> None:
    for item in (b"0", b"{}", b"[]"):
        raw = b'{"tasks":[%b]}' % b",".join([item] * 5)
        assert not outline(raw, "tasks", None, max_items=4, min_opaque_bytes=0, max_opaque_depth=None).is_complete
        assert outline(raw, "tasks", None, max_items=5, min_opaque_bytes=0, max_opaque_depth=None).is_complete


def spans_of(found: JsonOutline) -> list[tuple[int, ...]]:
    return [tuple(found.spans[index : index + SPAN_FIELDS]) for index in range(0, len(found.spans), SPAN_FIELDS)]

"""API keys: their text, hash and hint, and the conversion of scopes."""

from __future__ import annotations

import string
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.core.access import INCLUDED_SCOPES, Scope
from everbeat.core.errors import InvalidInput
from everbeat.core.keys import (
    checked_name,
    contains_key,
    granted_by,
    hash_of,
    hint_of,
    is_well_formed,
    make_key,
    parse_scopes,
    scope_texts,
)

SECRETS = st.binary(min_size=32, max_size=32)
ALPHABET = string.ascii_letters + string.digits + "_-"
QUEUES = st.text("ab:._-", min_size=1, max_size=8)
SCOPES = st.lists(st.sampled_from([scope.value for scope in Scope]) | QUEUES.map("work:{}".format), min_size=1, max_size=6)


@given(SECRETS)
def test_a_key_is_well_formed_and_its_hint_is_short(secret: bytes) -> None:
    key = make_key(secret)
    assert len(key) == 52
    assert is_well_formed(key)
    assert contains_key(f"/v1/tasks?a=eb_&key={key}&b=1")
    assert len(hash_of(key)) == 32
    shown = hint_of(key)
    assert len(shown) == 10
    assert (shown[:5], shown[-4:]) == (key[:5], key[-4:])


@given(SECRETS, st.integers(3, 51), st.sampled_from(ALPHABET))
def test_one_wrong_character_is_detected(secret: bytes, index: int, character: str) -> None:
    key = make_key(secret)
    wrong = key[:index] + character + key[index + 1 :]
    assert is_well_formed(wrong) is (wrong == key)


@given(SECRETS, st.integers(3, 50))
def test_swapped_or_missing_characters_are_detected(secret: bytes, index: int) -> None:
    key = make_key(secret)
    swapped = key[:index] + key[index + 1] + key[index] + key[index + 2 :]
    assert is_well_formed(swapped) is (swapped == key)
    assert not is_well_formed(key[:index] + key[index + 1 :])


@pytest.mark.parametrize(
    "text", ["", "eb_", "x" * 52, "eb_" + "A" * 49, "EB_" + "A" * 49, "eb_" + "ä" * 49, "eb_" + "A" * 4900]
)
def test_invalid_text_is_not_a_key(text: str) -> None:
    assert not is_well_formed(text)
    assert not contains_key(text)


@pytest.mark.parametrize("pattern", ["eb_", "eb_A", "eb_AAAAAAAAAAAAA", "eb__", "A"])
def test_a_search_for_keys_takes_time_proportional_to_the_length(pattern: str) -> None:
    text = (pattern * 8192)[:8192]
    best = min(timeit.repeat(lambda: contains_key(text), number=1, repeat=5))
    assert best < 0.003
    assert contains_key(text + make_key(bytes(32)))


@given(SCOPES)
def test_scopes_are_unchanged_after_a_round_trip(texts: list[str]) -> None:
    granted = parse_scopes(texts)
    written = scope_texts(granted)
    assert parse_scopes(written) == granted
    assert scope_texts(parse_scopes(written)) == written
    assert set(written) <= {*texts}
    for text in texts:
        scope = Scope(text.partition(":")[0])
        assert INCLUDED_SCOPES[scope] <= granted.scopes
    only_queues = all(text.startswith("work:") or Scope.WORK not in INCLUDED_SCOPES[Scope(text)] for text in texts)
    assert (granted.queues is None) is not (only_queues and any(text.startswith("work:") for text in texts))


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ([], "scopes"),
        (["admin", "root"], "scopes[1]"),
        (["work:"], "scopes[0]"),
        (["work:a b"], "scopes[0]"),
        (["read"] * 101, "scopes"),
    ],
)
def test_wrong_scopes_are_named(texts: list[str], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_scopes(texts)
    assert [error.field for error in caught.value.errors] == [field]


def test_a_fleet_key_has_only_the_work_scope() -> None:
    assert parse_scopes(["work:a", "work:b"], is_fleet=True).queues == frozenset({"a", "b"})
    for texts in (["read"], ["work", "read"], ["admin"]):
        with pytest.raises(InvalidInput, match="fleet key"):
            parse_scopes(texts, is_fleet=True)


def test_manage_includes_submit_and_read_but_not_work() -> None:
    assert granted_by(["manage"]).scopes == {Scope.MANAGE, Scope.SUBMIT, Scope.READ}
    assert granted_by(["admin", "work:mail"]).queues is None


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\nb", "a\x00", "\ud800"])
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        checked_name(name)

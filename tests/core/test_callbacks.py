from __future__ import annotations

from uuid import UUID

import pytest

from everbeat.core.callbacks import CallbackClaims, make_token, read_token

KEY = b"k" * 32
CLAIMS = CallbackClaims(UUID(int=1), UUID(int=2), 7)
TOKEN = make_token(KEY, CLAIMS)


def test_a_token_says_for_which_attempt_it_is() -> None:
    assert read_token(KEY, CLAIMS.task_id, TOKEN) == CLAIMS


def test_a_token_is_valid_for_one_task_and_one_key_only() -> None:
    assert read_token(KEY, UUID(int=3), TOKEN) is None
    assert read_token(b"o" * 32, CLAIMS.task_id, TOKEN) is None


@pytest.mark.parametrize("position", range(5, len(TOKEN) - 1))
def test_every_changed_character_makes_a_token_invalid(position: int) -> None:
    changed = TOKEN[:position] + ("A" if TOKEN[position] != "A" else "B") + TOKEN[position + 1 :]
    assert read_token(KEY, CLAIMS.task_id, changed) is None


@pytest.mark.parametrize("text", ["", "ebcb_", "ebcb_!!", "eb_" + TOKEN[5:], TOKEN * 3, "ebcb_" + "A" * 32, "ebcb_é"])
def test_other_text_is_not_a_token(text: str) -> None:
    assert read_token(KEY, CLAIMS.task_id, text) is None

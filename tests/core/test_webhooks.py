from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from everbeat.core.webhooks import (
    MAX_RETRY_AFTER_SECONDS,
    header_message,
    is_secret,
    matches_status,
    retry_after_seconds,
    secret_text,
    signature_headers,
)

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
OLD, NEW = secret_text(bytes(range(32))), secret_text(bytes(range(1, 33)))


@given(body=st.text())
def test_both_secrets_of_a_rotation_verify_the_signature(body: str) -> None:
    sent_at = int(datetime.now(UTC).timestamp())
    headers = signature_headers("0198-id", sent_at, body.encode(), (NEW, OLD))
    for secret in (OLD, NEW):
        Webhook(secret).verify(body, headers, json_parse=False)
    expected = Webhook(NEW).sign("0198-id", datetime.fromtimestamp(sent_at, UTC).replace(tzinfo=None), body)
    assert headers["webhook-signature"].split(" ")[0] == expected


def test_without_secrets_a_message_has_an_id_but_no_signature() -> None:
    assert signature_headers("x", 5, b"{}", ()) == {"webhook-id": "x", "webhook-timestamp": "5"}


@pytest.mark.parametrize(("text", "expected"), [(OLD, True), ("whsec_", False), ("whsec_!!!!", False), (OLD[6:], False)])
def test_secrets_have_a_prefix_and_a_length(text: str, expected: bool) -> None:
    assert is_secret(text) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("120", 120),
        (" 0 ", 0),
        ("Mon, 02 Mar 2026 12:05:00 GMT", 300),
        ("Monday, 02-Mar-26 12:05:00 GMT", 300),
        ("Mon Mar  2 12:05:00 2026", 300),
        ("Mon, 02 Mar 2026 11:00:00 GMT", 0),
        ("9999999999", MAX_RETRY_AFTER_SECONDS),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER_SECONDS),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
        ("99999999999999999999", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, expected: float | None) -> None:
    assert retry_after_seconds(value, NOW) == expected


def test_statuses_match_codes_and_classes() -> None:
    assert matches_status("2xx,304", 204)
    assert matches_status("2xx,304", 304)
    assert not matches_status("2xx,304", 302)


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Webhook-Id", "everbeat-task", "Proxy-Authorization", "a b", "a\r\nb"]
)
def test_headers_that_the_server_sets_are_refused(name: str) -> None:
    assert header_message(name, "x") is not None


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\x00", "é", "a" * 4097])
def test_header_values_with_control_characters_are_refused(value: str) -> None:
    assert header_message("x-a", value) is not None
    assert header_message("x-a", "Bearer token") is None

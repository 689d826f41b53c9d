"""Secrets in the headers of targets: shown as ***, and kept when *** is sent back to the same host."""

from __future__ import annotations

import pytest

from everbeat.core.target_secrets import REDACTED, is_secret_header, redaction_errors, shown_target, with_stored_secrets
from everbeat.core.targets import HttpTarget, Target, WorkerTarget

URL = "https://api.example/hook"
STORED = HttpTarget(url=URL, headers={"Authorization": "Bearer a", "X-Api-Key": "k", "Accept": "text/plain"})


def target(url: str = URL, **headers: str) -> HttpTarget:
    return HttpTarget(url=url, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    "name",
    [
        *("authorization", "Proxy-Authorization", "X-Api-Key", "apikey", "Cookie", "X-Auth-Token", "PRIVATE-TOKEN"),
        *("X-Amz-Security-Token", "X-Hub-Signature-256", "X-Session", "Client-Secret", "Ocp-Apim-Subscription-Key"),
    ],
)
def test_headers_with_secrets_are_recognized(name: str) -> None:
    assert is_secret_header(name)


@pytest.mark.parametrize("name", ["Accept", "Content-Type", "User-Agent", "X-Request-Id", "Keyboard", "Prefer", "Monkey-Id"])
def test_other_headers_are_not(name: str) -> None:
    assert not is_secret_header(name)


def test_secrets_are_not_shown() -> None:
    assert shown_target(STORED) == target(Authorization=REDACTED, X_Api_Key=REDACTED, Accept="text/plain")
    for other in (WorkerTarget(type="a"), target(Accept="text/plain")):
        assert shown_target(other) is other


def test_a_redacted_value_keeps_the_stored_one() -> None:
    sent = target(authorization=REDACTED, X_Api_Key="new", Accept="*/*")
    assert with_stored_secrets(sent, STORED) == target(authorization="Bearer a", X_Api_Key="new", Accept="*/*")
    assert with_stored_secrets(shown_target(STORED), STORED) == STORED
    moved = target(url="https://api.example/other?a=1", Authorization=REDACTED)
    kept = with_stored_secrets(moved, STORED)
    assert isinstance(kept, HttpTarget)
    assert kept.headers == {"Authorization": "Bearer a"}


@pytest.mark.parametrize("url", ["https://evil.example/hook", "http://api.example/hook", "https://api.example:444/hook"])
def test_a_secret_is_not_kept_for_another_host(url: str) -> None:
    sent = target(url=url, Authorization=REDACTED)
    (error,) = redaction_errors(with_stored_secrets(sent, STORED))
    assert error.field == "target.headers.Authorization"
    assert "send the value" in error.message


def test_a_secret_is_kept_for_the_same_endpoint_only() -> None:
    stored = HttpTarget(endpoint="billing", headers={"Authorization": "a"})
    assert with_stored_secrets(shown_target(stored), stored) == stored
    for other in (HttpTarget(endpoint="other", headers={"Authorization": REDACTED}), target(Authorization=REDACTED)):
        assert redaction_errors(with_stored_secrets(other, stored))


@pytest.mark.parametrize("stored", [None, WorkerTarget(type="a"), target(Accept=REDACTED)])
def test_without_a_stored_value_a_redacted_one_is_refused(stored: Target | None) -> None:
    sent = target(Authorization=REDACTED, Accept=REDACTED)
    assert [error.field for error in redaction_errors(with_stored_secrets(sent, stored))] == ["target.headers.Authorization"]

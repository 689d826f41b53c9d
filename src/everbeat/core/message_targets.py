"""Targets that people read: chat messages and e-mails. One struct per kind, and the validation that needs no network."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from everbeat.core.broker_targets import Text
from everbeat.core.errors import FieldError
from everbeat.core.webhook_addresses import MAX_URL_CHARACTERS, WebhookRules, url_message

MAX_RECIPIENTS = 50
MAX_SUBJECT_CHARACTERS = 200
MAX_ADDRESS_CHARACTERS = 254
REDACTED_PATH = "***"

_LOCAL_PART = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"(?=[^@]{{1,64}}@){_LOCAL_PART}@{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class _MessageTarget(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class SlackTarget(_MessageTarget, frozen=True, kw_only=True, tag="slack"):
    """An incoming webhook of Slack, or of a system with the same format, such as Mattermost and Rocket.Chat.

    The path of the URL is a secret: responses show `***` in its place, and a request with `***` keeps the stored one.
    """

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_URL_CHARACTERS)]


class EmailTarget(_MessageTarget, frozen=True, kw_only=True, tag="email"):
    """An e-mail, sent over the connection `broker`. `subject`: None for the title of the message."""

    to: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_RECIPIENTS)]
    broker: Text
    subject: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SUBJECT_CHARACTERS)] | None = None


MessageTarget = SlackTarget | EmailTarget


def is_address(text: str) -> bool:
    """Whether the text is an e-mail address without a display name, comments and quotes, in ASCII."""
    return len(text) <= MAX_ADDRESS_CHARACTERS and _ADDRESS.fullmatch(text) is not None


def has_line_control(text: str) -> bool:
    """Whether the text has a character that could end a header or a line."""
    return _CONTROL.search(text) is not None


def slack_errors(target: SlackTarget, rules: WebhookRules | None) -> list[FieldError]:
    message = url_message(target.url, rules)
    return [] if message is None else [FieldError("target.url", message)]


def email_errors(target: EmailTarget) -> list[FieldError]:
    errors = [
        FieldError(f"target.to[{index}]", "must be an e-mail address such as ops@example.org")
        for index, address in enumerate(target.to)
        if not is_address(address)
    ]
    if target.subject is not None and has_line_control(target.subject):
        errors.append(FieldError("target.subject", "must not contain line breaks and control characters"))
    return errors


def redacted_url(url: str) -> str:
    """Return the URL with its path redacted."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{REDACTED_PATH}"


def is_redacted_url(url: str) -> bool:
    return urlsplit(url).path == f"/{REDACTED_PATH}"

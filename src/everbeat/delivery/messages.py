"""The text of messages to people: a title and a body, from the payload of a task.

A notification of an alert has both in its payload, as `title` and `text`. The payload of any other task is shown as JSON,
unless it has a `text` of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from everbeat.core.deliveries import DeliveryTask

MAX_TITLE_CHARACTERS = 200
MAX_TEXT_CHARACTERS = 30_000


class _Payload(msgspec.Struct, frozen=True):
    title: str | None = None
    text: str | None = None


class MessageText(NamedTuple):
    title: str
    text: str


_decode = msgspec.json.Decoder(_Payload).decode


def message_text(task: DeliveryTask) -> MessageText:
    try:
        given = _decode(task.payload)
    except (msgspec.DecodeError, msgspec.ValidationError):
        given = _Payload()
    title = given.title or (f"{task.type} of {task.schedule}" if task.schedule else task.type)
    text = given.text if given.text is not None else _shown(task.payload)
    return MessageText(_one_line(title)[:MAX_TITLE_CHARACTERS], _plain(text)[:MAX_TEXT_CHARACTERS])


def _shown(payload: bytes) -> str:
    try:
        return msgspec.json.format(payload, indent=2).decode("utf-8", "replace")
    except msgspec.DecodeError:
        return payload.decode("utf-8", "replace")


def _one_line(text: str) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in _encodable(text)).split())


def _plain(text: str) -> str:
    """Return the text without control characters other than line breaks and tabs."""
    return "".join(one if one.isprintable() or one in "\n\t" else " " for one in _encodable(text))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()

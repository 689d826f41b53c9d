"""The checker process: reads bodies from its standard input, checks them, and writes their outlines to its standard output.

It ends when its input ends, so it never outlives the server.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from typing import BinaryIO

import msgspec

from everbeat.core.json_text import BadJson, JsonOutline, outline

READY = b"ready"
LENGTHS = struct.Struct("!IQ")
ANSWER_LENGTH = struct.Struct("!Q")

_NICENESS = 5


class OutlineRequest(msgspec.Struct, array_like=True):
    """What to look for in a body, as for `core.json_text.outline`."""

    list_field: str | None
    opaque_field: str | None
    max_items: int
    min_opaque_bytes: int
    max_opaque_depth: int | None


class OutlineAnswer(msgspec.Struct, array_like=True):
    """The outline of a body, or what is wrong with it."""

    error: str | None = None
    spans: bytes = b""
    list_start: int = 0
    list_end: int = 0
    is_complete: bool = True

    def outline(self) -> JsonOutline:
        if self.error is not None:
            raise BadJson(self.error)
        return JsonOutline(array("Q", self.spans), self.list_start, self.list_end, self.is_complete)


def answer(request: OutlineRequest, raw: bytes) -> OutlineAnswer:
    try:
        found = outline(
            raw,
            request.list_field,
            request.opaque_field,
            max_items=request.max_items,
            min_opaque_bytes=request.min_opaque_bytes,
            max_opaque_depth=request.max_opaque_depth,
        )
    except BadJson as error:
        return OutlineAnswer(str(error))
    return OutlineAnswer(None, array("Q", found.spans).tobytes(), found.list_start, found.list_end, found.is_complete)


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(_NICENESS)  # firing ticks is more urgent
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(READY)
    sink.flush()
    while lengths := _read(source, LENGTHS.size):
        request_length, body_length = LENGTHS.unpack(lengths)
        request = msgspec.msgpack.decode(_read(source, request_length), type=OutlineRequest)
        encoded = msgspec.msgpack.encode(answer(request, _read(source, body_length)))
        sink.write(ANSWER_LENGTH.pack(len(encoded)) + encoded)
        sink.flush()


def _read(source: BinaryIO, count: int) -> bytes:
    """Return as many bytes, or none at the end of the input."""
    found = source.read(count)
    return found if len(found) == count else b""


if __name__ == "__main__":
    main()

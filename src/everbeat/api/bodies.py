"""Request bodies: read within limits of size and time, checked, and decoded as strict JSON.

A small body is checked here: msgspec decodes it, and encoding it again shows whether it has duplicate keys. So is a body of up
to 384 KiB with few values, such as a batch of a thousand ordinary tasks, if that check passes. Any other body above 64 KiB is
checked by another process (`body_checks.py`), which returns an outline of it. Of such a body, only small parts are decoded
here, item by item. Payloads and results are opaque: they are copied.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import random
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from everbeat.api.body_checks import CheckerFailed
from everbeat.api.body_limits import LARGE_BYTES, BodyLimits
from everbeat.api.json_checker import OutlineRequest, answer
from everbeat.api.memory_shares import MemoryShare
from everbeat.api.messages import ApiRequest, Receive
from everbeat.api.problems import MALFORMED, MEDIA_TYPE_REFUSED, OVERLOADED, TOO_LARGE, TOO_SLOW, HttpProblem
from everbeat.core.definitions import MAX_DEPTH, as_invalid_input, decode_struct
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.json_text import SPAN_FIELDS, BadJson, JsonOutline, has_slow_numbers, has_unique_keys, is_nested_deeper
from everbeat.core.protocol import MAX_SUBMITTED
from everbeat.services.idempotency import Idempotency
from everbeat.services.time_slices import TimeSlices

MAX_BODY_BYTES = 12 * 1024 * 1024
MAX_FORM_BYTES = 1024 * 1024
# Limits of the decoded part of one object: everything except its payload or result. More values would take too long to decode.
MAX_FIELDS_BYTES = 6 * 1024 * 1024
MAX_FIELDS_VALUES = 150_000
# A batch of 1,000 tasks of the SDK is within these limits, and a body within them takes at most about 5 ms to check here.
_MEDIUM_BYTES = 384 * 1024
_MEDIUM_VALUES = 30_000

_MIN_OPAQUE_BYTES = 4096
_MAX_ERRORS = 100
_DEADLINE_PASSED = "the deadline of the body has passed"
_GAVE_MEMORY = "the body gives its memory to those of other callers"
_JSON_TYPE = re.compile(r"application/(json|[a-z0-9!#$&^_.+-]+\+json)", re.IGNORECASE)
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_REVISION = re.compile(r'(?:W/)?"(\d{1,18})"|(\d{1,18})')

S = TypeVar("S", bound=msgspec.Struct)

_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


class Opaque(NamedTuple):
    """A field that stays raw JSON, and the number of its levels, including the values of the innermost list or object."""

    field: str
    max_depth: int | None = None


PAYLOAD = Opaque("payload", MAX_DEPTH)
RESULT = Opaque("result")


class Items(NamedTuple):
    """The list field of a body, the type of its items, and the field of an item that stays raw JSON."""

    field: str
    type: Any
    opaque: Opaque | None = None
    max_items: int = MAX_SUBMITTED


async def read_json(request: ApiRequest, opaque: Opaque | None = None) -> Any:
    """Return the decoded body. If its opaque field is large, that is raw JSON."""
    return await decode(request, await read_body(request), opaque)


async def read_optional_json(request: ApiRequest) -> Any:
    """Return the decoded body, or an empty object if there is no body."""
    raw = await read_body(request, is_required=False)
    return await decode(request, raw) if raw else {}


async def read_as(request: ApiRequest, type_: type[S], items: Items | None = None, *, opaque: Opaque | None = None) -> S:
    """Return the body as this struct."""
    return await decode_as(request, await read_body(request), type_, items, opaque=opaque)


async def decode(request: ApiRequest, raw: bytes, opaque: Opaque | None = None) -> Any:
    """Decode strict JSON."""
    if len(raw) <= LARGE_BYTES:
        return _decoded(raw)
    start, end, *cut = (await _outline(request, raw, None, opaque)).spans
    return _opened(raw, start, end, cut, opaque, _decode_json)


async def decode_as(
    request: ApiRequest, raw: bytes, type_: type[S], items: Items | None = None, *, opaque: Opaque | None = None
) -> S:
    """Decode strict JSON as this struct."""
    if _is_checked_here(raw):
        try:
            found = decode_struct(raw, type_)
        except msgspec.ValidationError as error:
            raise _all_errors(raw, error, items) from None
        _check_depths(found, items, opaque)
        return found
    if items is None:
        start, end, *cut = (await _outline(request, raw, None, opaque)).spans
        try:
            whole: S = _opened(raw, start, end, cut, opaque, functools.partial(decode_struct, type_=type_))
            return whole
        except msgspec.ValidationError as error:
            raise as_invalid_input(error) from None
    outlined, outer = await _decode_outer(request, raw, type_, items)
    if outlined.list_end:
        msgspec.structs.force_setattr(outer, items.field, await _decode_items(raw, outlined, items))
    return outer


async def decode_items(request: ApiRequest, raw: bytes, type_: type[msgspec.Struct], items: Items) -> Sequence[Any]:
    """Decode the body as this struct, and return its items. Those of a large body are decoded when they are used."""
    if len(raw) <= LARGE_BYTES:
        outer = await decode_as(request, raw, type_)
        found: Sequence[Any] = getattr(outer, items.field)
        return found
    outlined, outer = await _decode_outer(request, raw, type_, items)
    found = getattr(outer, items.field)
    return LazyItems(raw, outlined, items) if outlined.list_end else found


class LazyItems(Sequence[Any]):
    """The items of a large body. Each is decoded each time it is used, so that only a few exist at the same time."""

    def __init__(self, raw: bytes, outline: JsonOutline, items: Items) -> None:
        self._raw = raw
        self._outline = outline
        self._items = items

    def __len__(self) -> int:
        return len(self._outline)

    def __getitem__(self, index: Any) -> Any:
        return _item(self._raw, self._outline, self._items, index, _decode_json)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


async def read_body(request: ApiRequest, *, is_required: bool = True) -> bytes:
    headers = request.headers
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() != b"identity":
        raise HttpProblem(MEDIA_TYPE_REFUSED, "Compressed bodies are not accepted.", {"Accept-Encoding": "identity"})
    content_type = headers.get(b"content-type")
    if content_type is not None and content_type != b"application/json":
        _check_content_type(content_type.decode("latin-1"))
    raw = await _read_in_time(request, _length_of(headers.get(b"content-length")))
    if not raw and is_required:
        raise HttpProblem(MALFORMED, "A JSON body is required.")
    if raw and content_type is None:
        raise HttpProblem(MEDIA_TYPE_REFUSED, "Send Content-Type: application/json.")
    return raw


async def read_form_body(request: ApiRequest) -> bytes:
    """Return the body of an HTML form, which is limited to 1 MiB."""
    content_type = request.header(b"content-type") or ""
    if content_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise HttpProblem(MEDIA_TYPE_REFUSED, "Send the form as application/x-www-form-urlencoded.")
    raw = await _read_in_time(request, _length_of(request.headers.get(b"content-length")))
    if len(raw) > MAX_FORM_BYTES:
        raise HttpProblem(TOO_LARGE, "The form is larger than 1 MiB.")
    return raw


async def read_beginning(request: ApiRequest, kept_bytes: int) -> tuple[bytes, int]:
    """Read a body of any type to its end. Return its first bytes and its size. Only these bytes are kept in memory."""
    body_limits = request.context.body_limits or BodyLimits()
    length, key = _length_of(request.headers.get(b"content-length")), _key_of_caller(request)
    kept, size = bytearray(), 0
    try:
        async with asyncio.timeout(body_limits.deadline_seconds):
            while True:
                message: Any = await request.receive()
                if message["type"] != "http.request":
                    raise HttpProblem(MALFORMED, "The body ended before it was complete.")
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                kept += chunk[: kept_bytes - len(kept)]
                if size == length or not message.get("more_body", False):
                    return bytes(kept), size
                await body_limits.throttle(key, len(chunk), size)
    except TimeoutError:
        raise HttpProblem(TOO_SLOW, f"The body did not arrive within {body_limits.deadline_seconds:g} seconds.") from None


def key_of(request: ApiRequest) -> str | None:
    """Return the idempotency key of a request."""
    key = request.header(b"idempotency-key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidInput.of("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
    return key


def idempotency_of(request: ApiRequest, raw: bytes) -> Idempotency | None:
    key = key_of(request)
    if key is None:
        return None
    head = f"{request.method}\n{request.path}\n".encode()
    return Idempotency(key, hashlib.sha256(head + raw).digest())


def if_match_revision(request: ApiRequest) -> int | None:
    """Return the revision in If-Match; None if the header is absent or accepts any revision."""
    text = request.header(b"if-match")
    if text is None or text.strip() == "*":
        return None
    match = _REVISION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput.of("If-Match", 'must be one revision, such as 3 or "3", or *')
    return int(match[1] or match[2])


async def _read_in_time(request: ApiRequest, length: int | None) -> bytes:
    body_limits = request.context.body_limits or BodyLimits()
    key = _key_of_caller(request)
    share = body_limits.share(key, request.caller.address)
    # A large body stays in memory, and keeps its share, until the response is built.
    request.body_share = share
    try:
        with _interruptible(share) as interrupt:
            # Like asyncio.timeout, at a third of its cost: this runs for every request.
            loop = asyncio.get_running_loop()
            deadline = loop.call_later(body_limits.deadline_seconds, interrupt, _DEADLINE_PASSED)
            try:
                return await _read_chunks(request.receive, length, body_limits, share, key)
            finally:
                deadline.cancel()
    except _Interrupted as interrupted:
        if interrupted.reason == _GAVE_MEMORY:
            raise _overloaded() from None
        raise HttpProblem(TOO_SLOW, f"The body did not arrive within {body_limits.deadline_seconds:g} seconds.") from None


async def _read_chunks(receive: Receive, length: int | None, body_limits: BodyLimits, share: MemoryShare, key: Any) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        while True:
            message: Any = await receive()
            if message["type"] != "http.request":
                raise HttpProblem(MALFORMED, "The body ended before it was complete.")
            chunk = message.get("body", b"")
            if size + len(chunk) > MAX_BODY_BYTES:
                raise _too_large()
            if not body_limits.reserve(share, len(chunk)):
                raise _overloaded()
            size += len(chunk)
            chunks.append(chunk)
            # The server reports the end of the body in a separate message. If the length is known, do not wait for it.
            if size == length or not message.get("more_body", False):
                return b"".join(chunks)
            await body_limits.throttle(key, len(chunk), size)
    finally:
        if size <= LARGE_BYTES:
            share.release()
        chunks.clear()  # an error refers to its frames, which would keep the chunks in memory


def _length_of(text: bytes | None) -> int | None:
    """Return the length of the body. A body that is too large according to its header is refused without reading it."""
    if text is None:
        return None
    if not text.isdigit():
        raise HttpProblem(MALFORMED, "Content-Length is not a number.")
    if len(text) > 18 or int(text) > MAX_BODY_BYTES:
        raise _too_large()
    return int(text)


def _too_large() -> HttpProblem:
    return HttpProblem(TOO_LARGE, f"A body may have at most {MAX_BODY_BYTES} bytes.")


def _check_content_type(content_type: str) -> None:
    media_type, _, parameters = content_type.partition(";")
    charset = re.search(r'charset\s*=\s*"?([^";\s]*)', parameters, re.IGNORECASE)
    if not _JSON_TYPE.fullmatch(media_type.strip()) or (charset and charset[1].lower() not in ("utf-8", "utf8")):
        raise HttpProblem(MEDIA_TYPE_REFUSED, "Send Content-Type: application/json, in UTF-8.")


def _is_checked_here(raw: bytes) -> bool:
    """Check a body that can be checked quickly. Returns False if another process has to check it."""
    if len(raw) <= LARGE_BYTES:
        _decoded(raw)
        return True
    is_medium = len(raw) <= _MEDIUM_BYTES and _count_values(raw) <= _MEDIUM_VALUES
    return is_medium and not has_slow_numbers(raw) and has_unique_keys(raw)


def _count_values(raw: bytes) -> int:
    """Return an upper bound of the number of values and keys, without decoding them."""
    return sum(raw.count(mark) for mark in (b",", b":", b"[", b"{"))


def _decoded(raw: bytes) -> Any:
    """Decode a small body."""
    try:
        data = _decode_json(raw)
    except UnicodeDecodeError:
        raise HttpProblem(MALFORMED, "The body is not valid UTF-8.") from None
    except RecursionError:
        raise HttpProblem(MALFORMED, "The body is nested too deeply.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise HttpProblem(MALFORMED, f"The body is not valid JSON: {error}") from None
    if not _round_trips(raw, data):
        _check_duplicates(raw)
    return data


def _round_trips(raw: bytes, data: Any) -> bool:
    """Whether encoding the data again results in the same body. Then it has no duplicate keys, which msgspec does not refuse.

    Otherwise, for example if the body has escapes, a slower check is needed.
    """
    try:
        encoded = _encode_json(data)
        return encoded == raw or encoded == msgspec.json.format(raw, indent=-1)
    except (RecursionError, msgspec.MsgspecError, ValueError):
        return False


def _check_duplicates(raw: bytes) -> None:
    try:
        json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except RecursionError:
        raise HttpProblem(MALFORMED, "The body is nested too deeply.") from None
    except ValueError as error:
        raise HttpProblem(MALFORMED, f"The body is not valid JSON: {error}") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    if len({key for key, _ in pairs}) == len(pairs):
        return
    for key, _ in pairs:
        if key in seen:
            raise HttpProblem(MALFORMED, f'An object in the body has the key "{key[:100]}" more than once.')
        seen.add(key)


# Large bodies


async def _outline(
    request: ApiRequest, raw: bytes, list_field: str | None, opaque: Opaque | None, max_items: int = 0
) -> JsonOutline:
    """Check a large body. While it waits, its memory may be reassigned to bodies of other callers."""
    field, max_depth = (None, None) if opaque is None else opaque
    wanted = OutlineRequest(list_field, field, max_items, _MIN_OPAQUE_BYTES, None if max_depth is None else max_depth - 1)
    checks = request.context.body_checks
    share = request.body_share
    assert share is not None
    try:
        with _interruptible(share):
            if checks is None:
                return (await asyncio.to_thread(answer, wanted, raw)).outline()
            return await checks.outline(raw, wanted, _key_of_caller(request))
    except BadJson as error:
        raise HttpProblem(MALFORMED, f"The body {error}.") from None
    except (CheckerFailed, _Interrupted):
        raise _overloaded() from None


async def _decode_outer(request: ApiRequest, raw: bytes, type_: type[S], items: Items) -> tuple[JsonOutline, S]:
    """Check a large body, and decode it as this struct with only the first of its items."""
    found = await _outline(request, raw, items.field, items.opaque, items.max_items)
    if not found.is_complete:
        raise InvalidInput.of(items.field, f"must have at most {items.max_items} items")
    text = raw
    if found.list_end:
        first = _item(raw, found, items, 0, lambda head: head) if len(found) else b""
        text = b"%b[%b]%b" % (raw[: found.list_start], first, raw[found.list_end :])
    _check_fields(text)
    try:
        return found, decode_struct(text, type_)
    except msgspec.ValidationError as error:
        if f"`$.{items.field}[" in str(error):
            await _decode_items(raw, found, items)  # raises the errors of all items
        raise as_invalid_input(error) from None


async def _decode_items(raw: bytes, outline: JsonOutline, items: Items) -> list[Any]:
    """Decode the items of a large body. Raises InvalidInput with the errors of all of them."""
    decoded: list[Any] = []
    errors: list[FieldError] = []
    slices = TimeSlices()
    decode_one = functools.partial(decode_struct, type_=items.type)
    for index in range(len(outline)):
        await slices.pause()
        try:
            decoded.append(_item(raw, outline, items, index, decode_one))
        except msgspec.ValidationError as error:
            errors += _errors_of_item(f"{items.field}[{index}]", error)
        except InvalidInput as error:
            errors += error.under(f"{items.field}[{index}]").errors
        if len(errors) >= _MAX_ERRORS:
            break
    if errors:
        raise InvalidInput(*errors)
    return decoded


def _item(raw: bytes, outline: JsonOutline, items: Items, index: int, decode_one: Callable[[bytes], Any]) -> Any:
    start, end, *cut = outline.spans[index * SPAN_FIELDS : (index + 1) * SPAN_FIELDS]
    return _opened(raw, start, end, cut, items.opaque, decode_one)


def _opened(
    raw: bytes, start: int, end: int, cut: Sequence[int], opaque: Opaque | None, decode_one: Callable[[bytes], Any]
) -> Any:
    """Decode an object without its opaque field, and set that to the raw JSON if it was cut out."""
    cut_start, cut_end, is_deep = cut
    if opaque is None or cut_start == cut_end:
        head = raw[start:end]
        _check_fields(head)
        return decode_one(head)
    head = b"%bnull%b" % (raw[start:cut_start], raw[cut_end:end])
    _check_fields(head)
    found = decode_one(head)
    if is_deep:
        raise _too_deep(opaque)
    value = msgspec.Raw(raw[cut_start:cut_end])
    if isinstance(found, dict):
        found[opaque.field] = value
    elif isinstance(found, msgspec.Struct):
        msgspec.structs.force_setattr(found, opaque.field, value)
    return found


def _check_depths(found: Any, items: Items | None, opaque: Opaque | None) -> None:
    """Check how deeply the opaque fields of a small body are nested."""
    if items is None:
        _check_depth(found, opaque)
        return
    for index, item in enumerate(getattr(found, items.field)):
        try:
            _check_depth(item, items.opaque)
        except InvalidInput as error:
            raise error.under(f"{items.field}[{index}]") from None


def _check_depth(found: Any, opaque: Opaque | None) -> None:
    if opaque is None or opaque.max_depth is None:
        return
    value = getattr(found, opaque.field)
    # Each level has two brackets, so most values are too short for too many levels.
    if len(value) > 2 * opaque.max_depth and is_nested_deeper(bytes(value), opaque.max_depth - 1):
        raise _too_deep(opaque)


def _too_deep(opaque: Opaque) -> InvalidInput:
    return InvalidInput.of(opaque.field, f"is nested deeper than {opaque.max_depth} levels")


def _check_fields(head: bytes) -> None:
    if len(head) > MAX_FIELDS_BYTES:
        raise HttpProblem(TOO_LARGE, f"An object, without its payload or result, may have at most {MAX_FIELDS_BYTES} bytes.")
    if len(head) > LARGE_BYTES and _count_values(head) > MAX_FIELDS_VALUES:
        raise HttpProblem(TOO_LARGE, f"An object, without its payload or result, may have at most {MAX_FIELDS_VALUES} values.")


# Interruptions


class _Interrupted(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def _interruptible(share: MemoryShare) -> Generator[Callable[[str], None]]:
    """Let others interrupt the task, at most once, with a reason. The block then raises _Interrupted."""
    task = asyncio.current_task()
    assert task is not None

    def interrupt(reason: str) -> None:
        if share.interrupt is not None:
            share.interrupt = None
            task.cancel(reason)

    share.interrupt = functools.partial(interrupt, _GAVE_MEMORY)
    try:
        yield interrupt
    except asyncio.CancelledError as cancelled:
        if cancelled.args not in ((_DEADLINE_PASSED,), (_GAVE_MEMORY,)) or task.uncancel() > 0:
            raise
        raise _Interrupted(cancelled.args[0]) from None
    finally:
        share.interrupt = None


def _overloaded() -> HttpProblem:
    # Random, so that clients refused at the same time do not all retry at the same time.
    retry = str(random.randint(1, 5))
    return HttpProblem(OVERLOADED, "Too many large bodies are being read; try again soon.", {"Retry-After": retry})


def _key_of_caller(request: ApiRequest) -> Any:
    return request.caller.key_id or request.caller.tenant_id


# Errors


def _all_errors(raw: bytes, error: msgspec.ValidationError, items: Items | None) -> InvalidInput:
    """Return the errors of all items. msgspec stops at the first invalid item, so each item is validated separately."""
    if items is None or f"`$.{items.field}[" not in str(error):
        return as_invalid_input(error)
    errors: list[FieldError] = []
    for index, item in enumerate(_decode_json(raw)[items.field][:MAX_SUBMITTED]):
        try:
            decode_struct(_encode_json(item), items.type)
        except msgspec.ValidationError as item_error:
            errors += _errors_of_item(f"{items.field}[{index}]", item_error)
            if len(errors) >= _MAX_ERRORS:
                break
    return InvalidInput(*errors) if errors else as_invalid_input(error)


def _errors_of_item(path: str, error: msgspec.ValidationError) -> list[FieldError]:
    invalid = as_invalid_input(error)
    if invalid.errors[0].field == "body":  # the item is not an object
        return [FieldError(path, invalid.errors[0].message)]
    return invalid.under(path).errors

"""Request bodies: read within limits of size and time, and decoded as strict JSON."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from typing import Any, NamedTuple, TypeVar

import msgspec

from everbeat.api.body_limits import BodyLimits
from everbeat.api.messages import ApiRequest, Receive
from everbeat.api.problems import MALFORMED, MEDIA_TYPE_REFUSED, OVERLOADED, TOO_LARGE, TOO_SLOW, HttpProblem
from everbeat.core.definitions import as_invalid_input
from everbeat.core.definitions import as_struct as convert_struct
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.protocol import MAX_SUBMITTED
from everbeat.services.idempotency import Idempotency

MAX_BODY_BYTES = 12 * 1024 * 1024
MAX_FORM_BYTES = 1024 * 1024

_MAX_BYTES_WITHOUT_YIELD = 64 * 1024
_MAX_ERRORS = 100
_DEADLINE_PASSED = "the deadline of the body has passed"
_JSON_TYPE = re.compile(r"application/(json|[a-z0-9!#$&^_.+-]+\+json)", re.IGNORECASE)
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_REVISION = re.compile(r'(?:W/)?"(\d{1,18})"|(\d{1,18})')

T = TypeVar("T")

_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


class Items(NamedTuple):
    """The list field of a body and the type of its items, so that an error can name the item."""

    field: str
    type: Any


async def read_json(request: ApiRequest) -> Any:
    return await decode(await read_body(request))


async def read_optional_json(request: ApiRequest) -> Any:
    """Return the decoded body, or an empty object if there is no body."""
    raw = await read_body(request, is_required=False)
    return await decode(raw) if raw else {}


async def read_as(request: ApiRequest, type_: type[T], items: Items | None = None) -> T:
    """Return the body as this struct."""
    return as_struct(await read_json(request), type_, items)


def as_struct(data: Any, type_: type[T], items: Items | None = None) -> T:
    try:
        return convert_struct(data, type_)
    except msgspec.ValidationError as error:
        raise _all_errors(data, error, items) from None


async def read_body(request: ApiRequest, *, is_required: bool = True) -> bytes:
    headers = request.headers
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() != b"identity":
        raise HttpProblem(MEDIA_TYPE_REFUSED, "Compressed bodies are not accepted.", {"Accept-Encoding": "identity"})
    content_type = headers.get(b"content-type")
    if content_type is not None and content_type != b"application/json":
        _check_content_type(content_type.decode("latin-1"))
    body_limits = request.context.body_limits or BodyLimits()
    raw = await _read_in_time(request.receive, _length_of(headers.get(b"content-length")), body_limits)
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
    length = _length_of(request.headers.get(b"content-length"))
    raw = await _read_in_time(request.receive, length, request.context.body_limits or BodyLimits())
    if len(raw) > MAX_FORM_BYTES:
        raise HttpProblem(TOO_LARGE, "The form is larger than 1 MiB.")
    return raw


async def decode(raw: bytes) -> Any:
    """Decode strict JSON. A large body is processed in steps, so that the tick loop of this process can run in between.

    The body is not decoded in a thread: the decoder never releases the GIL, so a thread would only add overhead.
    """
    data = _decoded(raw)
    if len(raw) <= _MAX_BYTES_WITHOUT_YIELD:
        if not _round_trips(raw, data):
            _check_duplicates(raw)
        return data
    await asyncio.sleep(0)
    round_trips = _round_trips(raw, data)
    await asyncio.sleep(0)
    if not round_trips:
        await asyncio.to_thread(_check_duplicates, raw)
    return data


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


async def _read_in_time(receive: Receive, length: int | None, body_limits: BodyLimits) -> bytes:
    reading = asyncio.current_task()
    assert reading is not None
    # Like asyncio.timeout, at a third of its cost: this runs for every request.
    deadline = asyncio.get_running_loop().call_later(body_limits.deadline_seconds, reading.cancel, _DEADLINE_PASSED)
    try:
        return await _read_chunks(receive, length, body_limits)
    except asyncio.CancelledError as cancelled:
        if cancelled.args != (_DEADLINE_PASSED,) or reading.uncancel() > 0:
            raise
        raise HttpProblem(TOO_SLOW, f"The body did not arrive within {body_limits.deadline_seconds:g} seconds.") from None
    finally:
        deadline.cancel()


async def _read_chunks(receive: Receive, length: int | None, body_limits: BodyLimits) -> bytes:
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
            if not body_limits.reserve(len(chunk), size + len(chunk)):
                # Random, so that clients refused at the same time do not all retry at the same time.
                retry = str(random.randint(1, 5))
                raise HttpProblem(OVERLOADED, "Too many large bodies are being read; try again soon.", {"Retry-After": retry})
            size += len(chunk)
            chunks.append(chunk)
            # The server reports the end of the body in a separate message. If the length is known, do not wait for it.
            if size == length or not message.get("more_body", False):
                return b"".join(chunks)
            await body_limits.throttle(len(chunk), size)
    finally:
        body_limits.free(size)
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


def _decoded(raw: bytes) -> Any:
    try:
        return _decode_json(raw)
    except UnicodeDecodeError:
        raise HttpProblem(MALFORMED, "The body is not valid UTF-8.") from None
    except RecursionError:
        raise HttpProblem(MALFORMED, "The body is nested too deeply.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise HttpProblem(MALFORMED, f"The body is not valid JSON: {error}") from None


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


def _all_errors(data: Any, error: msgspec.ValidationError, items: Items | None) -> InvalidInput:
    """Return the errors of all items. msgspec stops at the first invalid item, so each item is validated separately."""
    found = data.get(items.field) if items is not None and isinstance(data, dict) else None
    if items is None or not isinstance(found, list) or f"`$.{items.field}[" not in str(error):
        return as_invalid_input(error)
    errors: list[FieldError] = []
    for index, item in enumerate(found[:MAX_SUBMITTED]):
        try:
            convert_struct(item, items.type)
        except msgspec.ValidationError as item_error:
            path, invalid = f"{items.field}[{index}]", as_invalid_input(item_error)
            errors += invalid.under(path).errors if isinstance(item, dict) else [FieldError(path, invalid.errors[0].message)]
            if len(errors) >= _MAX_ERRORS:
                break
    return InvalidInput(*errors) if errors else as_invalid_input(error)

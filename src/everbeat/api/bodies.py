"""Request bodies: read within limits of size and time, and decoded as strict JSON."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

import msgspec
from litestar.exceptions import HTTPException

from everbeat.api.problems import MALFORMED, MEDIA_TYPE_REFUSED, TOO_LARGE, TOO_SLOW, Refusal
from everbeat.api.rooms import ApiRequest
from everbeat.core.errors import InvalidInput
from everbeat.services.schedules import Idempotency

MAX_BODY_BYTES = 12 * 1024 * 1024
BODY_DEADLINE_SECONDS = 30.0

_DECODED_AT_ONCE = 64 * 1024
_JSON_TYPE = re.compile(r"application/(json|[a-z0-9!#$&^_.+-]+\+json)", re.IGNORECASE)
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_REVISION = re.compile(r'(?:W/)?"(\d{1,18})"|(\d{1,18})')


async def read_json(request: ApiRequest) -> Any:
    return await decode(await read_body(request))


async def read_optional_json(request: ApiRequest) -> Any:
    """An empty object if there is no body."""
    raw = await read_body(request, is_required=False)
    return await decode(raw) if raw else {}


async def read_body(request: ApiRequest, *, is_required: bool = True) -> bytes:
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refusal(MEDIA_TYPE_REFUSED, "Compressed bodies are not accepted.", {"Accept-Encoding": "identity"})
    content_type = request.headers.get("content-type")
    if content_type is not None:
        _check_content_type(content_type)
    raw = await _received(request)
    if not raw and is_required:
        raise Refusal(MALFORMED, "A JSON body is required.")
    if raw and content_type is None:
        raise Refusal(MEDIA_TYPE_REFUSED, "Send Content-Type: application/json.")
    return raw


async def decode(raw: bytes) -> Any:
    """Big bodies are decoded in a thread: the tick loop of this process must not wait for them."""
    if len(raw) <= _DECODED_AT_ONCE:
        return _decode(raw)
    return await asyncio.to_thread(_decode, raw)


def idempotency_of(request: ApiRequest, raw: bytes) -> Idempotency | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidInput.of("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
    head = f"{request.method}\n{request.scope['path']}\n".encode()
    return Idempotency(key, hashlib.sha256(head + raw).digest())


def revision_wanted(request: ApiRequest) -> int | None:
    """The revision named by If-Match; None if there is none or any will do."""
    text = request.headers.get("if-match")
    if text is None or text.strip() == "*":
        return None
    match = _REVISION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput.of("If-Match", 'must be one revision, such as 3 or "3", or *')
    return int(match[1] or match[2])


async def _received(request: ApiRequest) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _too_large()
        async with asyncio.timeout(BODY_DEADLINE_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(TOO_SLOW, f"The body did not arrive within {BODY_DEADLINE_SECONDS:.0f} seconds.") from None
    except HTTPException:
        raise Refusal(MALFORMED, "The body ended before it was complete.") from None
    return b"".join(chunks)


def _too_large() -> Refusal:
    return Refusal(TOO_LARGE, f"A body may have {MAX_BODY_BYTES} bytes at most.")


def _check_content_type(content_type: str) -> None:
    media_type, _, parameters = content_type.partition(";")
    charset = re.search(r'charset\s*=\s*"?([^";\s]*)', parameters, re.IGNORECASE)
    if not _JSON_TYPE.fullmatch(media_type.strip()) or (charset and charset[1].lower() not in ("utf-8", "utf8")):
        raise Refusal(MEDIA_TYPE_REFUSED, "Send Content-Type: application/json, in UTF-8.")


def _decode(raw: bytes) -> Any:
    try:
        data = msgspec.json.decode(raw)
        # msgspec is strict about everything but keys that come twice, of which one would silently be lost. What it
        # writes back as it came lost none; else, as with escapes, a slower look decides.
        if msgspec.json.format(raw, indent=-1) != msgspec.json.encode(data):
            json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except UnicodeDecodeError:
        raise Refusal(MALFORMED, "The body is not valid UTF-8.") from None
    except RecursionError:
        raise Refusal(MALFORMED, "The body is nested too deeply.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Refusal(MALFORMED, f"The body is not valid JSON: {error}") from None
    return data


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    if len({key for key, _ in pairs}) == len(pairs):
        return
    for key, _ in pairs:
        if key in seen:
            raise Refusal(MALFORMED, f'An object of the body has the key "{key[:100]}" twice.')
        seen.add(key)

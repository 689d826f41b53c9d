"""API keys: their format, their stored form and their scopes. Random bytes are an argument.

A key consists of `eb_`, 43 characters for 32 random bytes, and a checksum of 6 characters, so that a mistyped or invented key
is rejected without a database query. Only the hash of a key is stored. It needs neither a salt nor a slow hash function,
because 256 random bits cannot be guessed.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.access import INCLUDED_SCOPES, Caller, Scope
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.names import NAME_MESSAGE, has_control_characters, is_encodable, is_name

PREFIX = "eb_"
SECRET_BYTES = 32
MAX_SCOPES = 100
MAX_NAME_LENGTH = 200

# The last character encodes the last two bits of the checksum.
_SHAPE = re.compile(r"eb_[A-Za-z0-9_-]{48}[AQgw]")
_SHAPES = re.compile(f"(?=({_SHAPE.pattern}))")
_MAX_SHAPES = 32
_CHECKSUM_LENGTH = 6
_WORK_PREFIX = f"{Scope.WORK}:"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key. `scopes` are strings: admin, manage, submit, read, work or work:QUEUE.

    `session_of`: the key of the login, if this key is a browser session. It is revoked with that key.
    """

    id: UUID
    tenant_id: UUID
    name: str
    hash: bytes
    hint: str
    scopes: tuple[str, ...]
    is_fleet: bool = False
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    session_of: UUID | None = None

    def is_usable(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class GrantedScopes(NamedTuple):
    """What the scopes of a key allow. `queues` None: `work` applies to every queue."""

    scopes: frozenset[Scope]
    queues: frozenset[str] | None


# Format


def make_key(secret: bytes) -> str:
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a key needs {SECRET_BYTES} random bytes")
    body = PREFIX + _text(secret)
    return body + _checksum(body)


def is_well_formed(key: str) -> bool:
    """Whether the text has the format and checksum of a key. The key may be unknown."""
    return _SHAPE.fullmatch(key) is not None and _checksum(key[:-_CHECKSUM_LENGTH]) == key[-_CHECKSUM_LENGTH:]


def contains_key(text: str) -> bool:
    """Whether a text contains a key. If many parts have the shape of one, the rest is not searched, and the result is True."""
    return any(count == _MAX_SHAPES or is_well_formed(match[1]) for count, match in enumerate(_SHAPES.finditer(text)))


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def hint_of(key: str) -> str:
    """Return two characters of the secret and four of the checksum. They distinguish keys and do not reveal the secret."""
    return f"{key[:5]}…{key[-4:]}"


def _checksum(body: str) -> str:
    return _text(zlib.crc32(body.encode()).to_bytes(4, "big"))


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


# Scopes


def parse_scopes(texts: Sequence[str], *, is_fleet: bool = False, field: str = "scopes") -> GrantedScopes:
    """Parse the scopes of a request. Raises InvalidInput with every invalid scope."""
    if not texts:
        raise InvalidInput.of(field, f"must contain at least one of {_choices()}")
    if len(texts) > MAX_SCOPES:
        raise InvalidInput.of(field, f"must have at most {MAX_SCOPES} scopes")
    errors = [FieldError(f"{field}[{index}]", message) for index, text in enumerate(texts) if (message := _scope_error(text))]
    if errors:
        raise InvalidInput(*errors)
    granted = granted_by(texts)
    if is_fleet and granted.scopes != {Scope.WORK}:
        raise InvalidInput.of(field, "a fleet key may only have the scopes work and work:QUEUE")
    return granted


def granted_by(texts: Collection[str]) -> GrantedScopes:
    """Parse the scopes of a stored key, which were validated when it was created."""
    unrestricted = [Scope(text) for text in texts if not text.startswith(_WORK_PREFIX)]
    queues = frozenset(text.removeprefix(_WORK_PREFIX) for text in texts if text.startswith(_WORK_PREFIX))
    scopes = frozenset[Scope]().union(*(INCLUDED_SCOPES[scope] for scope in unrestricted))
    if Scope.WORK in scopes or not queues:
        return GrantedScopes(scopes, None)
    return GrantedScopes(scopes | {Scope.WORK}, queues)


def scope_texts(granted: GrantedScopes) -> tuple[str, ...]:
    """Return the shortest list of scope strings with this meaning, in a fixed order."""
    scopes, queues = granted
    if queues is not None:
        scopes = scopes - {Scope.WORK}
    texts = [scope.value for scope in Scope if scope in scopes and not _is_implied(scope, scopes)]
    return (*texts, *(f"{_WORK_PREFIX}{queue}" for queue in sorted(queues or ())))


def _is_implied(scope: Scope, scopes: Iterable[Scope]) -> bool:
    return any(scope in INCLUDED_SCOPES[other] for other in scopes if other is not scope)


def _scope_error(text: str) -> str | None:
    if text.startswith(_WORK_PREFIX):
        return None if is_name(text.removeprefix(_WORK_PREFIX)) else f"the queue {NAME_MESSAGE}"
    return None if text in Scope._value2member_map_ else f"must be one of {_choices()}"


def _choices() -> str:
    return ", ".join([*Scope, f"{_WORK_PREFIX}QUEUE"])


def checked_name(name: str) -> str:
    """Return the name of a key if it is valid. It appears in lists and in the audit log."""
    if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.strip():
        raise InvalidInput.of("name", f"must be 1 to {MAX_NAME_LENGTH} characters")
    if has_control_characters(name) or "\n" in name or not is_encodable(name):
        raise InvalidInput.of("name", "must not contain control characters")
    return name


def caller_from_key(key: ApiKey) -> Caller:
    """Return the caller of a request with this key."""
    scopes, queues = granted_by(key.scopes)
    return Caller(key.tenant_id, scopes, queues, key.is_fleet, key.id, key.name)

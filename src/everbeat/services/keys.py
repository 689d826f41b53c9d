"""Operations on API keys: create, list and revoke them, and create the first key of a database."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry, Caller, Scope
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.errors import Conflict, InvalidInput, NotFound, Unauthenticated
from everbeat.core.keys import (
    SECRET_BYTES,
    ApiKey,
    checked_name,
    hash_of,
    hint_of,
    is_well_formed,
    make_key,
    parse_scopes,
    scope_texts,
)
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.audit_log import new_audit_log_entry
from everbeat.services.idempotency import Idempotency, check_same
from everbeat.services.ids import new_ids
from everbeat.store.base import Store
from everbeat.store.values import IdempotentResponse, KeyChange, Notice

_MAX_RECENT = 1000
_RECENT_SECONDS = 600.0


class NewKey(NamedTuple):
    """A new key. Its text is not stored and cannot be retrieved later."""

    key: ApiKey
    text: str


class _RecentKey(NamedTuple):
    """A key that was created recently, for a repeated request whose first response was lost."""

    fingerprint: bytes
    new: NewKey
    at: float


class KeyService:
    def __init__(
        self,
        store: Store,
        *,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._random_bytes = random_bytes
        self._monotonic = monotonic
        self._recent_keys: OrderedDict[tuple[UUID, str], _RecentKey] = OrderedDict()

    async def create(
        self,
        tenant_id: UUID,
        name: str,
        scopes: Sequence[str],
        *,
        is_fleet: bool = False,
        expires_at: datetime | None = None,
        idempotency: Idempotency | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> NewKey:
        """Create a key for a tenant, or a fleet key, for the workers of all tenants.

        A repeated request with the same idempotency key returns the same key. Its text is only in the memory of the node that
        created it, for ten minutes. After that, and on other nodes, the repeated request is refused.
        """
        response_tenant_id = DEFAULT_TENANT if by is None else by.tenant_id
        if idempotency is not None and (recent := await self._created_before(response_tenant_id, idempotency, now)) is not None:
            return recent
        moment = await self._store.clock(now=now)
        if expires_at is not None and expires_at <= moment:
            raise InvalidInput.of("expires_at", "must be in the future")
        new = self._new(tenant_id, name, scopes, moment, make_key(self._random_bytes(SECRET_BYTES)), is_fleet, expires_at)
        stored = None
        if idempotency is not None:
            body = msgspec.json.encode({"id": new.key.id})
            stored = IdempotentResponse(key=idempotency.key, fingerprint=idempotency.fingerprint, status=201, body=body)
        audit_log = [_creation_entry(new.key, by)]
        # With `moment`, which is also `created_at` in the response.
        change = await self._store.key_create(
            [new.key], response_tenant_id=response_tenant_id, response=stored, audit_log=audit_log, now=moment
        )
        if change is KeyChange.CONFLICT and idempotency is not None:
            recent = await self._created_before(response_tenant_id, idempotency, now)
            if recent is not None:
                return recent
        if change is not KeyChange.DONE:
            raise NotFound("there is no such tenant")
        if idempotency is not None:
            self._remember(response_tenant_id, idempotency, new)
        self._store.publish(Notice.KEYS)
        return new

    async def _created_before(self, response_tenant_id: UUID, idempotency: Idempotency, now: datetime | None) -> NewKey | None:
        recent = self._recent_keys.get((response_tenant_id, idempotency.key))
        if recent is not None and self._monotonic() - recent.at < _RECENT_SECONDS:
            check_same(recent.fingerprint, idempotency)
            return recent.new
        known = await self._store.idempotent_response_find(response_tenant_id, idempotency.key, now=now)
        if known is None:
            return None
        check_same(known.fingerprint, idempotency)
        id_ = msgspec.json.decode(known.body)["id"]
        raise Conflict(
            f"the key {id_} was created with this Idempotency-Key, and its secret is shown only once; "
            "if the secret is lost, revoke that key and create another one with a new Idempotency-Key"
        )

    def _remember(self, response_tenant_id: UUID, idempotency: Idempotency, new: NewKey) -> None:
        now = self._monotonic()
        self._recent_keys[response_tenant_id, idempotency.key] = _RecentKey(idempotency.fingerprint, new, now)
        while len(self._recent_keys) > _MAX_RECENT or next(iter(self._recent_keys.values())).at <= now - _RECENT_SECONDS:
            self._recent_keys.popitem(last=False)

    async def create_first(self, text: str | None = None, *, now: datetime | None = None) -> NewKey | None:
        """Create the first key of a database, with the scope admin. Returns None if the database has a key already.

        `text`: the key to store; by default a new one is generated. If several nodes do this at the same time, one succeeds.
        """
        if text is not None and not is_well_formed(text):
            raise InvalidInput.of("key", "is not an API key; keys begin with eb_ and have 52 characters")
        moment = await self._store.clock(now=now)
        key_text = text or make_key(self._random_bytes(SECRET_BYTES))
        new = self._new(DEFAULT_TENANT, "first admin", [Scope.ADMIN], moment, key_text)
        change = await self._store.key_create([new.key], only_first=True, audit_log=[_creation_entry(new.key, None)], now=now)
        if change is KeyChange.ABSENT:
            raise Conflict("this key has been revoked or has expired; use a new one")
        if change is not KeyChange.DONE:
            return None
        self._store.publish(Notice.KEYS)
        return new

    def _new(
        self,
        tenant_id: UUID,
        name: str,
        scopes: Sequence[str],
        moment: datetime,
        text: str,
        is_fleet: bool = False,
        expires_at: datetime | None = None,
    ) -> NewKey:
        key = ApiKey(
            id=new_ids(1)[0],
            tenant_id=tenant_id,
            name=checked_name(name),
            hash=hash_of(text),
            hint=hint_of(text),
            scopes=scope_texts(parse_scopes(scopes, is_fleet=is_fleet)),
            is_fleet=is_fleet,
            created_at=moment,
            expires_at=expires_at,
        )
        return NewKey(key, text)

    async def open_session(self, caller: Caller, *, seconds: float, now: datetime | None = None) -> NewKey:
        """Create the key of a browser session: it may do what the caller's key may do, and is revoked with that key."""
        if caller.key_id is None:
            raise InvalidInput.of("key", "a session needs an API key")
        moment, keys = await self._store.key_find(ids=[caller.key_id], now=now)
        if not keys or not keys[0].is_usable(moment):
            raise Unauthenticated("This API key has been revoked or has expired.")
        login = keys[0]
        ends = moment + timedelta(seconds=seconds)
        text = make_key(self._random_bytes(SECRET_BYTES))
        session = msgspec.structs.replace(
            login,
            id=new_ids(1)[0],
            hash=hash_of(text),
            hint=hint_of(text),
            created_at=moment,
            expires_at=ends if login.expires_at is None else min(ends, login.expires_at),
            last_used_at=None,
            session_of=login.session_of or login.id,
        )
        entry = new_audit_log_entry(caller, AuditLogAction.SESSION_CREATE, login.id, name=login.name, hint=login.hint)
        if await self._store.key_create([session], audit_log=[entry], now=moment) is not KeyChange.DONE:
            raise NotFound("there is no such tenant")
        return NewKey(session, text)

    async def end_session(self, caller: Caller, *, now: datetime | None = None) -> None:
        """Revoke the key of a browser session. Ending it again changes nothing."""
        if caller.key_id is None:
            return
        _, keys = await self._store.key_find(ids=[caller.key_id])
        if not keys or keys[0].session_of is None:
            return
        entry = new_audit_log_entry(caller, AuditLogAction.SESSION_END, keys[0].session_of, name=keys[0].name)
        await self._store.key_revoke(caller.tenant_id, [keys[0].id], audit_log=[entry], now=now)
        self._store.publish(Notice.KEYS)

    async def page(self, tenant_id: UUID | None, *, after: UUID | None, limit: int) -> list[ApiKey]:
        return await self._store.key_list(tenant_id, after=after, limit=limit)

    async def is_valid(self, text: str, *, now: datetime | None = None) -> bool:
        """Return whether this key is valid."""
        moment, keys = await self._store.key_find(hashes=[hash_of(text)], now=now)
        return any(key.is_usable(moment) for key in keys)

    async def get(self, id_: UUID) -> ApiKey:
        _, keys = await self._store.key_find(ids=[id_])
        if not keys:
            raise NotFound("there is no such key")
        return keys[0]

    async def revoke(
        self, id_: UUID, *, tenant_id: UUID | None = None, by: Caller | None = None, now: datetime | None = None
    ) -> None:
        """Revoke a key on all nodes, and end its open requests. Revoking it again changes nothing."""
        key = await self.get(id_)
        if tenant_id is not None and key.tenant_id != tenant_id:
            raise NotFound("there is no such key")
        if key.revoked_at is not None:
            return
        entry = new_audit_log_entry(by, AuditLogAction.KEY_REVOKE, id_, tenant_id=key.tenant_id, name=key.name, hint=key.hint)
        change = await self._store.key_revoke(tenant_id, [id_], audit_log=[entry], now=now)
        if change is KeyChange.LAST_ADMIN:
            raise Conflict(
                "this is the last key with the scope admin that does not expire; create another one before you revoke it"
                if key.expires_at is None
                else "this is the last key with the scope admin; create another one before you revoke it"
            )
        self._store.publish(Notice.KEYS)


def _creation_entry(key: ApiKey, by: Caller | None) -> AuditLogEntry:
    return new_audit_log_entry(
        by,
        AuditLogAction.KEY_CREATE,
        key.id,
        tenant_id=key.tenant_id,
        name=key.name,
        hint=key.hint,
        scopes=list(key.scopes),
        is_fleet=key.is_fleet,
        expires_at=key.expires_at,
    )

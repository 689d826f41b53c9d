"""Operations on API keys: make, list and revoke them, and the first one of a new database."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry, Caller, Scope
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.errors import Conflict, InvalidInput, NotFound
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

_MAX_SHOWN = 1000
_SHOWN_SECONDS = 600.0


class NewKey(NamedTuple):
    """A key that was just made; its text is nowhere else and cannot be had again."""

    key: ApiKey
    text: str


class _Shown(NamedTuple):
    """A key whose text was just shown, for whoever asks again because the answer was lost."""

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
        self._shown: OrderedDict[tuple[UUID, str], _Shown] = OrderedDict()

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
        """A new key for a tenant, or, as a fleet's, for the workers of all.

        Under an idempotency key of the caller, the one that was made first. Its text is nowhere but in the memory of the node
        that made it, for a while; after that nobody can tell it again, and the request is refused.
        """
        response_tenant_id = DEFAULT_TENANT if by is None else by.tenant_id
        if idempotency is not None and (shown := await self._made_before(response_tenant_id, idempotency, now)) is not None:
            return shown
        moment = await self._store.clock(now=now)
        if expires_at is not None and expires_at <= moment:
            raise InvalidInput.of("expires_at", "must be in the future")
        new = self._new(tenant_id, name, scopes, moment, make_key(self._random_bytes(SECRET_BYTES)), is_fleet, expires_at)
        kept = None
        if idempotency is not None:
            body = msgspec.json.encode({"id": new.key.id})
            kept = IdempotentResponse(key=idempotency.key, fingerprint=idempotency.fingerprint, status=201, body=body)
        audit_log = [_created(new.key, by)]
        # Of the instant that the answer tells.
        change = await self._store.key_create(
            [new.key], response_tenant_id=response_tenant_id, response=kept, audit_log=audit_log, now=moment
        )
        if change is KeyChange.LATE and idempotency is not None:
            shown = await self._made_before(response_tenant_id, idempotency, now)
            if shown is not None:
                return shown
        if change is not KeyChange.DONE:
            raise NotFound("there is no such tenant")
        if idempotency is not None:
            self._remember(response_tenant_id, idempotency, new)
        self._store.publish(Notice.KEYS)
        return new

    async def _made_before(self, response_tenant_id: UUID, idempotency: Idempotency, now: datetime | None) -> NewKey | None:
        shown = self._shown.get((response_tenant_id, idempotency.key))
        if shown is not None and self._monotonic() - shown.at < _SHOWN_SECONDS:
            check_same(shown.fingerprint, idempotency)
            return shown.new
        known = await self._store.idempotent_response_find(response_tenant_id, idempotency.key, now=now)
        if known is None:
            return None
        check_same(known.fingerprint, idempotency)
        id_ = msgspec.json.decode(known.body)["id"]
        raise Conflict(
            f"the key {id_} was made under this Idempotency-Key, and its secret was shown once; "
            "if it is lost, revoke that key and make another under a new Idempotency-Key"
        )

    def _remember(self, response_tenant_id: UUID, idempotency: Idempotency, new: NewKey) -> None:
        now = self._monotonic()
        self._shown[response_tenant_id, idempotency.key] = _Shown(idempotency.fingerprint, new, now)
        while len(self._shown) > _MAX_SHOWN or next(iter(self._shown.values())).at <= now - _SHOWN_SECONDS:
            self._shown.popitem(last=False)

    async def create_first(self, text: str | None = None, *, now: datetime | None = None) -> NewKey | None:
        """The first key of a database, which may do everything; None if there is one already, also if another node was faster.

        `text`: a key that somebody made; otherwise one is made here.
        """
        if text is not None and not is_well_formed(text):
            raise InvalidInput.of("key", "is not an API key; keys begin with eb_ and have 52 characters")
        moment = await self._store.clock(now=now)
        made = text or make_key(self._random_bytes(SECRET_BYTES))
        new = self._new(DEFAULT_TENANT, "first admin", [Scope.ADMIN], moment, made)
        change = await self._store.key_create([new.key], only_first=True, audit_log=[_created(new.key, None)], now=now)
        if change is KeyChange.ABSENT:
            raise Conflict("this key was in use before and was revoked or has expired; use a new one")
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

    async def page(self, tenant_id: UUID | None, *, after: UUID | None, limit: int) -> list[ApiKey]:
        return await self._store.key_list(tenant_id, after=after, limit=limit)

    async def is_known(self, text: str, *, now: datetime | None = None) -> bool:
        """Whether this key can be used."""
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
        """End a key for good, on every node and with all that is open under it. One that was revoked before stays so."""
        key = await self.get(id_)
        if tenant_id is not None and key.tenant_id != tenant_id:
            raise NotFound("there is no such key")
        if key.revoked_at is not None:
            return
        entry = new_audit_log_entry(by, AuditLogAction.KEY_REVOKE, id_, tenant_id=key.tenant_id, name=key.name, hint=key.hint)
        change = await self._store.key_revoke(tenant_id, [id_], audit_log=[entry], now=now)
        if change is KeyChange.LAST_ADMIN:
            raise Conflict("this is the last key with the scope admin; make another one before you revoke it")
        self._store.publish(Notice.KEYS)


def _created(key: ApiKey, by: Caller | None) -> AuditLogEntry:
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

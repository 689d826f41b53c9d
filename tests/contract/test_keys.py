"""key_find, key_exists, key_create, key_revoke, key_list and key_touch."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from everbeat.core.audit_log import AuditLogAction
from everbeat.core.keys import ApiKey, hash_of, hint_of, make_key
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.audit_log import new_audit_log_entry
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter, KeyChange
from tests.factories import NOW

DAY = timedelta(days=1)


def make(number: int, **more: Any) -> ApiKey:
    text = make_key(bytes([number]) * 32)
    defaults: dict[str, Any] = {
        "id": UUID(int=1000 + number),
        "tenant_id": DEFAULT_TENANT,
        "name": f"key {number} ä",
        "hash": hash_of(text),
        "hint": hint_of(text),
        "scopes": ("manage", "work:mail"),
        "created_at": NOW,
    }
    return ApiKey(**{**defaults, **more})


async def create(store: Store, *keys: ApiKey, **more: Any) -> KeyChange:
    return await store.key_create(keys, now=NOW, **more)


async def actions(store: Store) -> list[str]:
    return [entry.action for entry in await store.audit_log_list(None, AuditLogFilter(), before=None, limit=100)]


async def test_key_find_returns_stored_keys_by_hash_or_id(store: Store) -> None:
    one, two, three = make(1, expires_at=NOW + DAY), make(2, is_fleet=True, scopes=("work",)), make(3)
    assert await create(store, one, two, three) is KeyChange.DONE
    assert (await store.key_find(hashes=[one.hash, b"x" * 32], now=NOW)) == (NOW, [one])
    assert sorted((await store.key_find(hashes=[two.hash], ids=[two.id, three.id]))[1], key=lambda key: key.id) == [two, three]
    assert (await store.key_find(now=NOW)) == (NOW, [])


async def test_key_exists_counts_only_usable_keys(store: Store) -> None:
    assert not await store.key_exists(now=NOW)
    await create(store, make(1, expires_at=NOW + DAY))
    assert await store.key_exists(now=NOW)
    assert not await store.key_exists(now=NOW + DAY)
    await create(store, make(2))
    assert await store.key_exists(now=NOW + DAY)
    await store.key_revoke(None, [make(2).id], now=NOW)
    assert not await store.key_exists(now=NOW + DAY)


async def test_key_create_is_atomic_and_needs_the_tenant(store: Store) -> None:
    audit_log = [new_audit_log_entry(None, AuditLogAction.KEY_CREATE, "x")]
    assert await create(store, make(1), make(2, tenant_id=uuid4()), audit_log=audit_log) is KeyChange.ABSENT
    assert await store.key_list(None, after=None, limit=10) == []
    assert await actions(store) == []
    assert await create(store, make(1), audit_log=audit_log) is KeyChange.DONE
    assert await actions(store) == ["key.create"]
    assert await create(store, make(3, hash=make(1).hash)) is KeyChange.ABSENT


async def test_key_create_under_concurrency_creates_one_first_key(store: Store) -> None:
    changes = await asyncio.gather(*(store.key_create([make(number)], only_first=True) for number in range(8)))
    assert sorted(changes) == [*[KeyChange.CONFLICT] * 7, KeyChange.DONE]
    assert len(await store.key_list(None, after=None, limit=10)) == 1


async def test_key_revoke_revokes_a_key_once_and_only_in_its_tenant(store: Store) -> None:
    key = make(1)
    await create(store, key)
    audit_log = [new_audit_log_entry(None, AuditLogAction.KEY_REVOKE, "x")]
    assert await store.key_revoke(uuid4(), [key.id], audit_log=audit_log, now=NOW) is KeyChange.ABSENT
    assert await store.key_revoke(DEFAULT_TENANT, [key.id], audit_log=audit_log, now=NOW) is KeyChange.DONE
    assert await store.key_revoke(None, [key.id], audit_log=audit_log, now=NOW + DAY) is KeyChange.ABSENT
    assert (await store.key_find(ids=[key.id]))[1][0].revoked_at == NOW
    assert await actions(store) == ["key.revoke"]


async def test_key_revoke_keeps_the_last_admin_key(store: Store) -> None:
    admins = [make(1, scopes=("admin",)), make(2, scopes=("admin",)), make(3, scopes=("admin",), expires_at=NOW + DAY)]
    await create(store, *admins, make(4))
    assert await store.key_revoke(None, [admins[0].id], now=NOW + DAY) is KeyChange.DONE
    assert await store.key_revoke(None, [admins[1].id], now=NOW + DAY) is KeyChange.LAST_ADMIN, "the third has expired"
    assert await store.key_revoke(None, [make(4).id], now=NOW + DAY) is KeyChange.DONE
    changes = await asyncio.gather(*(store.key_revoke(None, [key.id], now=NOW) for key in admins[1:]))
    assert sorted(changes) == [KeyChange.DONE, KeyChange.LAST_ADMIN], "only one of two concurrent revocations succeeds"


async def test_key_revoke_keeps_the_last_admin_key_that_does_not_expire(store: Store) -> None:
    lasting = [make(number, scopes=("admin",)) for number in (1, 2)]
    expiring = [make(number, scopes=("admin",), expires_at=NOW + DAY) for number in (3, 4)]
    await create(store, *lasting, *expiring)
    changes = await asyncio.gather(*(store.key_revoke(None, [key.id], now=NOW) for key in lasting))
    assert sorted(changes) == [KeyChange.DONE, KeyChange.LAST_ADMIN]
    for key in expiring:
        assert await store.key_revoke(None, [key.id], now=NOW) is KeyChange.DONE


async def test_key_revoke_allows_an_expiring_admin_key_if_none_lasts(store: Store) -> None:
    expiring = [make(number, scopes=("admin",), expires_at=NOW + DAY) for number in (1, 2)]
    await create(store, *expiring)
    assert await store.key_revoke(None, [expiring[0].id], now=NOW) is KeyChange.DONE
    assert await store.key_revoke(None, [expiring[1].id], now=NOW) is KeyChange.LAST_ADMIN


async def test_key_list_continues_after_the_given_key(store: Store) -> None:
    keys = [make(number) for number in range(5)]
    await create(store, *keys)
    assert await store.key_list(DEFAULT_TENANT, after=None, limit=3) == keys[:3]
    assert await store.key_list(None, after=keys[2].id, limit=3) == keys[3:]
    assert await store.key_list(uuid4(), after=None, limit=3) == []


async def test_key_touch_never_sets_an_earlier_time(store: Store) -> None:
    key = make(1)
    await create(store, key)
    assert await store.key_touch([key.id, uuid4()], now=NOW) == 1
    assert await store.key_touch([key.id], now=NOW - DAY) == 0
    assert (await store.key_find(ids=[key.id]))[1][0].last_used_at == NOW


def make_session(number: int, login: ApiKey, **more: Any) -> ApiKey:
    return make(number, session_of=login.id, expires_at=NOW + DAY, scopes=login.scopes, **more)


async def test_session_keys_are_found_but_not_listed_or_counted(store: Store) -> None:
    login = make(1, scopes=("admin",))
    session = make_session(2, login)
    await create(store, login, session)
    assert (await store.key_find(hashes=[session.hash], now=NOW))[1] == [session]
    assert await store.key_list(None, after=None, limit=10) == [login]
    # The session does not count as a second admin key.
    assert await store.key_revoke(None, [login.id], now=NOW) is KeyChange.LAST_ADMIN


async def test_key_revoke_ends_the_sessions_of_the_key(store: Store) -> None:
    login, other = make(1), make(3)
    session, others = make_session(2, login), make_session(4, other)
    await create(store, login, other, session, others)
    assert await store.key_revoke(None, [login.id], now=NOW) is KeyChange.DONE
    found = {key.id: key.revoked_at for key in (await store.key_find(ids=[session.id, others.id]))[1]}
    assert found == {session.id: NOW, others.id: None}


async def test_key_revoke_of_a_session_leaves_its_key(store: Store) -> None:
    login = make(1)
    session = make_session(2, login)
    await create(store, login, session)
    assert await store.key_revoke(DEFAULT_TENANT, [session.id], now=NOW) is KeyChange.DONE
    assert await store.key_revoke(DEFAULT_TENANT, [session.id], now=NOW) is KeyChange.ABSENT
    assert (await store.key_find(ids=[login.id]))[1][0].revoked_at is None


async def test_session_prune_deletes_only_expired_sessions(store: Store) -> None:
    login = make(1, expires_at=NOW + DAY)
    session = make_session(2, login)
    await create(store, login, session)
    assert await store.session_prune(limit=10, now=NOW) == 0
    assert await store.session_prune(limit=10, now=NOW + 2 * DAY) == 1
    assert [key.id for key in (await store.key_find(ids=[login.id, session.id]))[1]] == [login.id]

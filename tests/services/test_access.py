"""Access: authentication, the number of key queries it needs, and what ends with a key."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.access import LOCAL_CALLER, Scope
from everbeat.core.errors import Conflict, InvalidInput, NotFound, StoreUnavailable, TooManyRequests, Unauthenticated
from everbeat.core.keys import ApiKey, make_key
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.access import Authenticator
from everbeat.services.bootstrap import AuthDecision, AuthSettings, decide_auth
from everbeat.services.events import ProxyNotTrusted
from everbeat.services.keys import KeyService
from everbeat.services.rate_limits import RateLimiter, RequestLimits, RequestRates
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import Notice
from tests.factories import NOW
from tests.support.processes import wait_until_async

ADDRESS = "203.0.113.9"


class ObservedStore(SqliteStore):
    """Counts key queries, and can delay them or be unavailable."""

    key_queries = 0
    is_unavailable = False
    may_respond: asyncio.Event | None = None
    blocked_read: asyncio.Event | None = None
    has_read = False

    async def key_find(self, **wanted: Any) -> Any:
        self.key_queries += 1
        if self.may_respond is not None:
            await self.may_respond.wait()
        if self.is_unavailable:
            raise StoreUnavailable("unavailable")
        blocked_read = self.blocked_read
        found = await super().key_find(**wanted)
        if blocked_read is not None:
            self.has_read = True
            await blocked_read.wait()
        return found


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def observed(sqlite_path: Any) -> Any:
    store = ObservedStore(sqlite_path)
    await store.migrate()
    yield store
    await store.close()


def bearer(text: str) -> list[bytes]:
    return [f"Bearer {text}".encode()]


async def make(store: Store, *scopes: str, **more: Any) -> tuple[ApiKey, list[bytes]]:
    key, text = await KeyService(store).create(DEFAULT_TENANT, "a key", scopes or ("read",), **more)
    return key, bearer(text)


async def test_a_key_determines_the_tenant_and_the_scopes(observed: ObservedStore) -> None:
    access = Authenticator(observed, KeySessions(), is_required=True)
    key, header = await make(observed, "submit", "work:mail")
    caller = await access.authenticate(header, ADDRESS)
    assert caller.tenant_id == DEFAULT_TENANT
    assert caller.scopes == {Scope.SUBMIT, Scope.WORK}
    assert (caller.queues, caller.key_id, caller.actor) == (frozenset({"mail"}), key.id, "a key")
    assert not caller.is_fleet


async def test_many_requests_with_one_key_need_one_query(observed: ObservedStore) -> None:
    clock = Clock()
    access = Authenticator(observed, KeySessions(), monotonic=clock)
    _, header = await make(observed)
    observed.may_respond = asyncio.Event()
    waiting = [asyncio.create_task(access.authenticate(header, ADDRESS)) for _ in range(50)]
    await asyncio.sleep(0)
    observed.may_respond.set()
    await asyncio.gather(*waiting)
    for _ in range(50):
        await access.authenticate(header, ADDRESS)
    assert observed.key_queries == 1
    clock.now += 5
    await access.authenticate(header, ADDRESS)
    assert observed.key_queries == 2


@pytest.mark.parametrize("text", ["", "eb_", "eb_" + "A" * 49, "not a key", "x" * 10_000])
async def test_a_malformed_key_is_refused_without_a_query(observed: ObservedStore, text: str) -> None:
    access = Authenticator(observed, KeySessions())
    for header in (bearer(text), [b"Basic YTpi"], bearer(text) * 2):
        with pytest.raises(Unauthenticated):
            await access.authenticate(header, ADDRESS)
    assert observed.key_queries == 0


async def test_an_unknown_key_is_queried_only_once_in_two_seconds(observed: ObservedStore) -> None:
    clock = Clock()
    access = Authenticator(observed, KeySessions(), monotonic=clock)
    header = bearer(make_key(b"x" * 32))
    for _ in range(20):
        with pytest.raises(Unauthenticated, match="unknown"):
            await access.authenticate(header, ADDRESS)
    assert observed.key_queries == 1
    clock.now += 2
    with pytest.raises(Unauthenticated):
        await access.authenticate(header, ADDRESS)
    assert observed.key_queries == 2


async def test_a_request_without_a_key_is_local_or_refused(observed: ObservedStore) -> None:
    assert await Authenticator(observed, KeySessions()).authenticate([], ADDRESS) == LOCAL_CALLER
    with pytest.raises(Unauthenticated, match="Authorization: Bearer"):
        await Authenticator(observed, KeySessions(), is_required=True).authenticate([], ADDRESS)


async def test_a_revoked_key_is_refused_as_soon_as_the_notice_arrives(observed: ObservedStore) -> None:
    access = Authenticator(observed, KeySessions())
    key, header = await make(observed)
    await make(observed, "admin")
    await access.authenticate(header, ADDRESS)
    await KeyService(observed).revoke(key.id)
    with pytest.raises(Unauthenticated, match="revoked"):
        await access.authenticate(header, ADDRESS)


async def test_a_key_read_before_a_change_is_not_used_after_it(observed: ObservedStore) -> None:
    access = Authenticator(observed, KeySessions(), monotonic=Clock())
    key, header = await make(observed)
    await make(observed, "admin")
    observed.blocked_read = asyncio.Event()
    authenticating = asyncio.create_task(access.authenticate(header, ADDRESS))
    await wait_until_async(lambda: observed.has_read)
    blocked_read, observed.blocked_read = observed.blocked_read, None
    await KeyService(observed).revoke(key.id)
    blocked_read.set()  # the result of the earlier read arrives after the notice
    await authenticating
    with pytest.raises(Unauthenticated, match="revoked"):
        await access.authenticate(header, ADDRESS)


async def test_a_new_key_works_immediately_even_if_it_was_unknown_before(observed: ObservedStore) -> None:
    access = Authenticator(observed, KeySessions())
    text = make_key(b"y" * 32)
    with pytest.raises(Unauthenticated):
        await access.authenticate(bearer(text), ADDRESS)
    assert await KeyService(observed).create_first(text) is not None
    assert Scope.ADMIN in (await access.authenticate(bearer(text), ADDRESS)).scopes


async def test_a_key_expires_by_the_databases_clock(observed: ObservedStore) -> None:
    clock = Clock()
    access = Authenticator(observed, KeySessions(), monotonic=clock)
    now = await observed.clock()
    _, header = await make(observed, expires_at=now + timedelta(seconds=3))
    await access.authenticate(header, ADDRESS)
    clock.now += 3.1  # the key has not been queried again and has expired
    observed.is_unavailable = True
    with pytest.raises(StoreUnavailable):
        await access.authenticate(header, ADDRESS)


async def test_while_the_database_is_unavailable_only_known_keys_are_decided(observed: ObservedStore) -> None:
    clock = Clock()
    access = Authenticator(observed, KeySessions(), monotonic=clock)
    _, header = await make(observed)
    _, other = await make(observed)
    await access.authenticate(header, ADDRESS)
    observed.is_unavailable = True
    for _ in range(10):
        clock.now += 60
        await access.authenticate(header, ADDRESS)
    with pytest.raises(StoreUnavailable):
        await access.authenticate(other, ADDRESS)
    observed.is_unavailable = False
    await access.authenticate(other, ADDRESS)


async def test_sessions_end_only_with_their_own_key(observed: ObservedStore) -> None:
    sessions = KeySessions()
    access = Authenticator(observed, sessions)
    (one, header), (_, other) = await make(observed), await make(observed)
    await make(observed, "admin")
    with (
        sessions.open(await access.authenticate(header, ADDRESS)) as ending,
        sessions.open(await access.authenticate(other, ADDRESS)) as staying,
        sessions.open(LOCAL_CALLER) as local,
    ):
        await access.run_once()
        assert not ending.has_ended
        await KeyService(observed).revoke(one.id)
        await access.run_once()
        assert (ending.has_ended, staying.has_ended, local.has_ended) == (True, False, False)
    assert sessions.key_ids() == []


async def test_sessions_end_when_their_key_expires(observed: ObservedStore) -> None:
    sessions = KeySessions()
    access = Authenticator(observed, sessions)
    now = await observed.clock()
    _, header = await make(observed, expires_at=now + timedelta(hours=1))
    with sessions.open(await access.authenticate(header, ADDRESS)) as session:
        await access.run_once(now + timedelta(minutes=59))
        assert not session.has_ended
        await access.run_once(now + timedelta(minutes=61))
        assert session.has_ended


async def test_the_last_use_is_written_once_a_minute(observed: ObservedStore) -> None:
    clock = Clock()
    access = Authenticator(observed, KeySessions(), monotonic=clock)
    key, header = await make(observed)

    async def used_at() -> Any:
        return (await KeyService(observed).get(key.id)).last_used_at

    for minute in range(2):
        for _ in range(3):
            await access.authenticate(header, ADDRESS)
            await access.run_once(NOW + timedelta(minutes=minute))
            await access.run_once(NOW + timedelta(minutes=minute, seconds=30))
        assert await used_at() == NOW + timedelta(minutes=minute)
        clock.now += 61


async def test_a_key_revoked_on_another_node_is_refused_here(postgres_url: str) -> None:
    here, there = PostgresStore(postgres_url), PostgresStore(postgres_url, listen=False)
    notices: list[Notice] = []
    here.subscribe(notices.append)
    access = Authenticator(here, KeySessions(), monotonic=Clock())  # by this clock it would not query again
    await here.open()
    await wait_until_async(lambda: set(notices) == set(Notice))
    key, header = await make(there)
    await access.authenticate(header, ADDRESS)
    notices.clear()
    await KeyService(there).revoke(key.id)
    await wait_until_async(lambda: Notice.KEYS in notices)
    with pytest.raises(Unauthenticated, match="revoked"):
        await access.authenticate(header, ADDRESS)
    await there.close()
    await here.close()


# Limits


def limits_of(clock: Clock, **rates: float) -> RequestLimits:
    return RequestLimits(RequestRates(**rates), monotonic=clock)


async def test_each_key_has_its_own_rate(observed: ObservedStore) -> None:
    clock = Clock()
    access = Authenticator(observed, KeySessions(), limits_of(clock, per_key=10), monotonic=clock)
    (_, header), (_, other) = await make(observed), await make(observed)
    for _ in range(20):
        await access.authenticate(header, ADDRESS)
    with pytest.raises(TooManyRequests) as caught:
        await access.authenticate(header, "198.51.100.1")
    assert 0 < caught.value.retry_after_seconds < 0.11
    await access.authenticate(other, ADDRESS)
    clock.now += 0.11
    await access.authenticate(header, ADDRESS)


async def test_after_many_wrong_keys_unknown_keys_are_refused_without_a_query(observed: ObservedStore) -> None:
    clock = Clock()
    access = Authenticator(observed, KeySessions(), limits_of(clock, bad_keys=2), monotonic=clock)
    (_, known), (_, fresh) = await make(observed), await make(observed)
    await access.authenticate(known, ADDRESS)
    for number in range(10):
        with pytest.raises(Unauthenticated):
            await access.authenticate(bearer(make_key(bytes([number]) * 32)), ADDRESS)
    key_queries = observed.key_queries
    for header in (bearer(make_key(b"z" * 32)), fresh, bearer("nonsense")):
        with pytest.raises(TooManyRequests):
            await access.authenticate(header, ADDRESS)
    assert observed.key_queries == key_queries
    await access.authenticate(known, ADDRESS)  # wrong keys from the same address do not limit a key authenticated before
    await access.authenticate(fresh, "198.51.100.1")


def test_a_limiter_removes_the_least_recent_addresses() -> None:
    clock = Clock()
    limiter = RequestLimits(RequestRates(per_address=1), monotonic=clock)
    for number in range(60_000):
        limiter.check_address(f"address {number}")
    assert len(limiter._addresses) == 50_000
    assert RateLimiter(None).take("any") == 0


def test_an_untrusted_proxy_is_reported_once(sqlite_path: Any) -> None:
    emitted: list[Any] = []
    access = Authenticator(SqliteStore(sqlite_path), KeySessions(), is_required=True, emit=emitted.append)
    assert access.address_of("10.0.0.1", ()) == "10.0.0.1"
    for _ in range(3):
        assert access.address_of("10.0.0.1", ["1.2.3.4"]) == "10.0.0.1"
    assert emitted == [ProxyNotTrusted("10.0.0.1")]


# Keys


async def test_the_last_admin_key_cannot_be_revoked(observed: ObservedStore) -> None:
    key, _ = await make(observed, "admin")
    with pytest.raises(Conflict, match="last key"):
        await KeyService(observed).revoke(key.id)
    await make(observed, "admin")
    await KeyService(observed).revoke(key.id)
    await KeyService(observed).revoke(key.id)


async def test_unknown_keys_and_keys_of_other_tenants_are_not_found(observed: ObservedStore) -> None:
    key, _ = await make(observed)
    with pytest.raises(NotFound):
        await KeyService(observed).revoke(UUID(int=5))
    with pytest.raises(NotFound):
        await KeyService(observed).revoke(key.id, tenant_id=UUID(int=5))
    with pytest.raises(NotFound):
        await KeyService(observed).create(UUID(int=5), "x", ["read"])
    with pytest.raises(InvalidInput, match="future"):
        await make(observed, expires_at=NOW - timedelta(days=9999))


async def test_changes_of_keys_publish_a_notice(observed: ObservedStore) -> None:
    notices: list[Notice] = []
    observed.subscribe(notices.append)
    key, _ = await make(observed)
    await KeyService(observed).revoke(key.id)
    assert notices == [Notice.KEYS] * 2


def test_a_long_poll_with_many_names_counts_several_times() -> None:
    limits = RequestLimits(max_polls_per_key=10)
    key, other = UUID(int=1), UUID(int=2)
    with limits.open_poll(key, 49), limits.open_poll(key, 100), limits.open_poll(key, 299):  # 1 + 3 + 6
        with pytest.raises(TooManyRequests), limits.open_poll(key):
            pass
        with limits.open_poll(other, 1100), pytest.raises(TooManyRequests), limits.open_poll(other):
            pass  # the only one may be larger than the limit
    with limits.open_poll(key, 450):
        pass
    assert limits._open_polls == {}


# The start of a server

LOOPBACK = AuthSettings("auto", None, "127.0.0.1", True)


async def test_auto_requires_a_key_if_the_database_has_one(observed: ObservedStore) -> None:
    assert await decide_auth(observed, LOOPBACK) == AuthDecision(False)
    with pytest.raises(Exception, match=r"--auth keys.*everbeat keys create"):
        await decide_auth(observed, AuthSettings("auto", None, "0.0.0.0", False))
    await make(observed)
    assert (await decide_auth(observed, LOOPBACK)).is_required
    assert (await decide_auth(observed, AuthSettings("auto", None, "0.0.0.0", False))).is_required
    assert not (await decide_auth(observed, AuthSettings("off", None, "127.0.0.1", True))).is_required


async def test_nodes_that_start_concurrently_create_one_key(observed: ObservedStore) -> None:
    decision = await asyncio.gather(*(decide_auth(observed, AuthSettings("keys", None, "0.0.0.0", False)) for _ in range(5)))
    assert all(one.is_required for one in decision)
    (shown,) = [one.new_key for one in decision if one.new_key is not None]
    assert shown.key.scopes == ("admin",)
    assert await KeyService(observed).is_valid(shown.text)


async def test_the_first_key_is_read_from_a_file_which_is_created_if_missing(observed: ObservedStore, tmp_path: Any) -> None:
    file = tmp_path / "admin.key"
    terms = AuthSettings("auto", file, "127.0.0.1", True)
    decision = await asyncio.gather(*(decide_auth(observed, terms) for _ in range(3)))
    assert [one.used_file for one in decision].count(file) == 1
    assert not any(one.new_key or one.unused_file for one in decision)
    assert file.stat().st_mode & 0o777 == 0o600
    for mode, is_exposed in ((0o600, False), (0o400, False), (0o640, True), (0o604, True)):
        file.chmod(mode)
        assert (await decide_auth(observed, terms)).exposed_file == (file if is_exposed else None)
    assert await KeyService(observed).is_valid(file.read_text().strip())
    assert [path.name for path in tmp_path.glob("*key*")] == ["admin.key"]
    (tmp_path / "other.key").write_text(make_key(b"o" * 32) + "\n")
    assert (
        await decide_auth(observed, AuthSettings("keys", tmp_path / "other.key", "127.0.0.1", True))
    ).unused_file is not None


async def test_a_file_without_a_key_is_refused(observed: ObservedStore, tmp_path: Any) -> None:
    (tmp_path / "bad").write_text("password123")
    for path in (tmp_path / "bad", tmp_path, tmp_path / "no" / "where"):
        with pytest.raises(Exception, match="admin_key_file"):
            await decide_auth(observed, AuthSettings("keys", path, "127.0.0.1", True))

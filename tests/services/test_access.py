"""Access: who is let in, what is asked of the database for it, and what ends with a key."""

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
from everbeat.services.bootstrap import AuthSettings, decide_auth
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


class Watched(SqliteStore):
    """Counts how often keys are looked up, and is away when told so."""

    asked = 0
    is_away = False
    may_answer: asyncio.Event | None = None
    slow: asyncio.Event | None = None
    has_read = False

    async def key_find(self, **wanted: Any) -> Any:
        self.asked += 1
        if self.may_answer is not None:
            await self.may_answer.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        slow = self.slow
        found = await super().key_find(**wanted)
        if slow is not None:
            self.has_read = True
            await slow.wait()
        return found


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def watched(sqlite_path: Any) -> Any:
    store = Watched(sqlite_path)
    await store.migrate()
    yield store
    await store.close()


def bearer(text: str) -> list[bytes]:
    return [f"Bearer {text}".encode()]


async def make(store: Store, *scopes: str, **more: Any) -> tuple[ApiKey, list[bytes]]:
    key, text = await KeyService(store).create(DEFAULT_TENANT, "a key", scopes or ("read",), **more)
    return key, bearer(text)


async def test_a_key_decides_the_tenant_and_the_scopes(watched: Watched) -> None:
    access = Authenticator(watched, KeySessions(), is_required=True)
    key, header = await make(watched, "submit", "work:mail")
    caller = await access.authenticate(header, ADDRESS)
    assert caller.tenant_id == DEFAULT_TENANT
    assert caller.scopes == {Scope.SUBMIT, Scope.WORK}
    assert (caller.queues, caller.key_id, caller.actor) == (frozenset({"mail"}), key.id, "a key")
    assert not caller.is_fleet


async def test_many_requests_of_a_key_are_one_query(watched: Watched) -> None:
    clock = Clock()
    access = Authenticator(watched, KeySessions(), monotonic=clock)
    _, header = await make(watched)
    watched.may_answer = asyncio.Event()
    waiting = [asyncio.create_task(access.authenticate(header, ADDRESS)) for _ in range(50)]
    await asyncio.sleep(0)
    watched.may_answer.set()
    await asyncio.gather(*waiting)
    for _ in range(50):
        await access.authenticate(header, ADDRESS)
    assert watched.asked == 1
    clock.now += 5
    await access.authenticate(header, ADDRESS)
    assert watched.asked == 2


@pytest.mark.parametrize("text", ["", "eb_", "eb_" + "A" * 49, "not a key", "x" * 10_000])
async def test_what_cannot_be_a_key_is_refused_without_asking(watched: Watched, text: str) -> None:
    access = Authenticator(watched, KeySessions())
    for header in (bearer(text), [b"Basic YTpi"], bearer(text) * 2):
        with pytest.raises(Unauthenticated):
            await access.authenticate(header, ADDRESS)
    assert watched.asked == 0


async def test_an_unknown_key_is_asked_for_once_in_a_while(watched: Watched) -> None:
    clock = Clock()
    access = Authenticator(watched, KeySessions(), monotonic=clock)
    header = bearer(make_key(b"x" * 32))
    for _ in range(20):
        with pytest.raises(Unauthenticated, match="not known"):
            await access.authenticate(header, ADDRESS)
    assert watched.asked == 1
    clock.now += 2
    with pytest.raises(Unauthenticated):
        await access.authenticate(header, ADDRESS)
    assert watched.asked == 2


async def test_without_a_key_it_depends(watched: Watched) -> None:
    assert await Authenticator(watched, KeySessions()).authenticate([], ADDRESS) == LOCAL_CALLER
    with pytest.raises(Unauthenticated, match="Authorization: Bearer"):
        await Authenticator(watched, KeySessions(), is_required=True).authenticate([], ADDRESS)


async def test_a_revoked_key_is_refused_as_soon_as_the_notice_comes(watched: Watched) -> None:
    access = Authenticator(watched, KeySessions())
    key, header = await make(watched)
    await make(watched, "admin")
    await access.authenticate(header, ADDRESS)
    await KeyService(watched).revoke(key.id)
    with pytest.raises(Unauthenticated, match="revoked"):
        await access.authenticate(header, ADDRESS)


async def test_what_was_read_before_a_change_is_not_believed_after_it(watched: Watched) -> None:
    access = Authenticator(watched, KeySessions(), monotonic=Clock())
    key, header = await make(watched)
    await make(watched, "admin")
    watched.slow = asyncio.Event()
    asking = asyncio.create_task(access.authenticate(header, ADDRESS))
    await wait_until_async(lambda: watched.has_read)
    slow, watched.slow = watched.slow, None
    await KeyService(watched).revoke(key.id)
    slow.set()  # the answer of before comes after the notice
    await asking
    with pytest.raises(Unauthenticated, match="revoked"):
        await access.authenticate(header, ADDRESS)


async def test_a_new_key_is_known_at_once_though_it_was_asked_for_before(watched: Watched) -> None:
    access = Authenticator(watched, KeySessions())
    text = make_key(b"y" * 32)
    with pytest.raises(Unauthenticated):
        await access.authenticate(bearer(text), ADDRESS)
    assert await KeyService(watched).create_first(text) is not None
    assert Scope.ADMIN in (await access.authenticate(bearer(text), ADDRESS)).scopes


async def test_a_key_ends_when_it_expires_by_the_databases_clock(watched: Watched) -> None:
    clock = Clock()
    access = Authenticator(watched, KeySessions(), monotonic=clock)
    now = await watched.clock()
    _, header = await make(watched, expires_at=now + timedelta(seconds=3))
    await access.authenticate(header, ADDRESS)
    clock.now += 3.1  # not asked again yet, and good no longer
    watched.is_away = True
    with pytest.raises(StoreUnavailable):
        await access.authenticate(header, ADDRESS)


async def test_while_the_database_is_away_known_keys_work_and_others_are_not_judged(watched: Watched) -> None:
    clock = Clock()
    access = Authenticator(watched, KeySessions(), monotonic=clock)
    _, header = await make(watched)
    _, other = await make(watched)
    await access.authenticate(header, ADDRESS)
    watched.is_away = True
    for _ in range(10):
        clock.now += 60
        await access.authenticate(header, ADDRESS)
    with pytest.raises(StoreUnavailable):
        await access.authenticate(other, ADDRESS)
    watched.is_away = False
    await access.authenticate(other, ADDRESS)


async def test_sessions_end_with_their_key_and_no_other(watched: Watched) -> None:
    sessions = KeySessions()
    access = Authenticator(watched, sessions)
    (one, header), (_, other) = await make(watched), await make(watched)
    await make(watched, "admin")
    with (
        sessions.open(await access.authenticate(header, ADDRESS)) as ending,
        sessions.open(await access.authenticate(other, ADDRESS)) as staying,
        sessions.open(LOCAL_CALLER) as local,
    ):
        await access.run_once()
        assert not ending.has_ended
        await KeyService(watched).revoke(one.id)
        await access.run_once()
        assert (ending.has_ended, staying.has_ended, local.has_ended) == (True, False, False)
    assert sessions.key_ids() == []


async def test_sessions_end_when_their_key_expires(watched: Watched) -> None:
    sessions = KeySessions()
    access = Authenticator(watched, sessions)
    now = await watched.clock()
    _, header = await make(watched, expires_at=now + timedelta(hours=1))
    with sessions.open(await access.authenticate(header, ADDRESS)) as session:
        await access.run_once(now + timedelta(minutes=59))
        assert not session.has_ended
        await access.run_once(now + timedelta(minutes=61))
        assert session.has_ended


async def test_last_use_is_written_once_a_minute(watched: Watched) -> None:
    clock = Clock()
    access = Authenticator(watched, KeySessions(), monotonic=clock)
    key, header = await make(watched)

    async def used_at() -> Any:
        return (await KeyService(watched).get(key.id)).last_used_at

    for minute in range(2):
        for _ in range(3):
            await access.authenticate(header, ADDRESS)
            await access.run_once(NOW + timedelta(minutes=minute))
            await access.run_once(NOW + timedelta(minutes=minute, seconds=30))
        assert await used_at() == NOW + timedelta(minutes=minute)
        clock.now += 61


async def test_a_key_revoked_on_another_node_is_refused_here(postgres_url: str) -> None:
    here, there = PostgresStore(postgres_url), PostgresStore(postgres_url, listen=False)
    heard: list[Notice] = []
    here.subscribe(heard.append)
    access = Authenticator(here, KeySessions(), monotonic=Clock())  # by its own clock it would not ask again
    await here.open()
    await wait_until_async(lambda: set(heard) == set(Notice))
    key, header = await make(there)
    await access.authenticate(header, ADDRESS)
    heard.clear()
    await KeyService(there).revoke(key.id)
    await wait_until_async(lambda: Notice.KEYS in heard)
    with pytest.raises(Unauthenticated, match="revoked"):
        await access.authenticate(header, ADDRESS)
    await there.close()
    await here.close()


# Limits


def limits_of(clock: Clock, **rates: float) -> RequestLimits:
    return RequestLimits(RequestRates(**rates), monotonic=clock)


async def test_a_key_has_its_rate(watched: Watched) -> None:
    clock = Clock()
    access = Authenticator(watched, KeySessions(), limits_of(clock, per_key=10), monotonic=clock)
    (_, header), (_, other) = await make(watched), await make(watched)
    for _ in range(20):
        await access.authenticate(header, ADDRESS)
    with pytest.raises(TooManyRequests) as caught:
        await access.authenticate(header, "198.51.100.1")
    assert 0 < caught.value.retry_after_seconds < 0.11
    await access.authenticate(other, ADDRESS)
    clock.now += 0.11
    await access.authenticate(header, ADDRESS)


async def test_after_many_wrong_keys_no_other_is_looked_at(watched: Watched) -> None:
    clock = Clock()
    access = Authenticator(watched, KeySessions(), limits_of(clock, bad_keys=2), monotonic=clock)
    (_, known), (_, fresh) = await make(watched), await make(watched)
    await access.authenticate(known, ADDRESS)
    for number in range(10):
        with pytest.raises(Unauthenticated):
            await access.authenticate(bearer(make_key(bytes([number]) * 32)), ADDRESS)
    asked = watched.asked
    for header in (bearer(make_key(b"z" * 32)), fresh, bearer("nonsense")):
        with pytest.raises(TooManyRequests):
            await access.authenticate(header, ADDRESS)
    assert watched.asked == asked
    await access.authenticate(known, ADDRESS)  # who was let in a moment ago does not pay for the neighbours
    await access.authenticate(fresh, "198.51.100.1")


def test_a_limiter_forgets_those_who_came_longest_ago() -> None:
    clock = Clock()
    limiter = RequestLimits(RequestRates(per_address=1), monotonic=clock)
    for number in range(60_000):
        limiter.check_address(f"address {number}")
    assert len(limiter._addresses) == 50_000
    assert RateLimiter(None).take("anybody") == 0


def test_a_proxy_that_nobody_named_is_told_of_once(sqlite_path: Any) -> None:
    told: list[Any] = []
    access = Authenticator(SqliteStore(sqlite_path), KeySessions(), is_required=True, emit=told.append)
    assert access.address_of("10.0.0.1", ()) == "10.0.0.1"
    for _ in range(3):
        assert access.address_of("10.0.0.1", ["1.2.3.4"]) == "10.0.0.1"
    assert told == [ProxyNotTrusted("10.0.0.1")]


# Keys


async def test_the_last_admin_key_stays(watched: Watched) -> None:
    key, _ = await make(watched, "admin")
    with pytest.raises(Conflict, match="last key"):
        await KeyService(watched).revoke(key.id)
    await make(watched, "admin")
    await KeyService(watched).revoke(key.id)
    await KeyService(watched).revoke(key.id)


async def test_keys_of_nobody_or_of_others_are_not_found(watched: Watched) -> None:
    key, _ = await make(watched)
    with pytest.raises(NotFound):
        await KeyService(watched).revoke(UUID(int=5))
    with pytest.raises(NotFound):
        await KeyService(watched).revoke(key.id, tenant_id=UUID(int=5))
    with pytest.raises(NotFound):
        await KeyService(watched).create(UUID(int=5), "x", ["read"])
    with pytest.raises(InvalidInput, match="future"):
        await make(watched, expires_at=NOW - timedelta(days=9999))


async def test_changes_of_keys_are_told(watched: Watched) -> None:
    heard: list[Notice] = []
    watched.subscribe(heard.append)
    key, _ = await make(watched)
    await KeyService(watched).revoke(key.id)
    assert heard == [Notice.KEYS] * 2


# The start of a server

OPEN = AuthSettings("auto", None, "127.0.0.1", True)


async def test_auto_is_decided_by_what_the_database_has(watched: Watched) -> None:
    assert await decide_auth(watched, OPEN) == (False, None, None, None)
    with pytest.raises(Exception, match=r"--auth keys.*everbeat keys create"):
        await decide_auth(watched, AuthSettings("auto", None, "0.0.0.0", False))
    await make(watched)
    assert (await decide_auth(watched, OPEN)).is_required
    assert (await decide_auth(watched, AuthSettings("auto", None, "0.0.0.0", False))).is_required
    assert not (await decide_auth(watched, AuthSettings("off", None, "127.0.0.1", True))).is_required


async def test_nodes_that_start_together_make_one_key(watched: Watched) -> None:
    decision = await asyncio.gather(*(decide_auth(watched, AuthSettings("keys", None, "0.0.0.0", False)) for _ in range(5)))
    assert all(one.is_required for one in decision)
    (shown,) = [one.shown for one in decision if one.shown is not None]
    assert shown.key.scopes == ("admin",)
    assert await KeyService(watched).is_known(shown.text)


async def test_the_first_key_comes_from_a_file_which_is_made_if_need_be(watched: Watched, tmp_path: Any) -> None:
    file = tmp_path / "admin.key"
    terms = AuthSettings("auto", file, "127.0.0.1", True)
    decision = await asyncio.gather(*(decide_auth(watched, terms) for _ in range(3)))
    assert [one.filed for one in decision].count(file) == 1
    assert not any(one.shown or one.unused for one in decision)
    assert file.stat().st_mode & 0o777 == 0o600
    assert await KeyService(watched).is_known(file.read_text().strip())
    assert [path.name for path in tmp_path.glob("*key*")] == ["admin.key"]
    (tmp_path / "other.key").write_text(make_key(b"o" * 32) + "\n")
    assert (await decide_auth(watched, AuthSettings("keys", tmp_path / "other.key", "127.0.0.1", True))).unused is not None


async def test_a_file_without_a_key_is_refused(watched: Watched, tmp_path: Any) -> None:
    (tmp_path / "bad").write_text("password123")
    for path in (tmp_path / "bad", tmp_path, tmp_path / "no" / "where"):
        with pytest.raises(Exception, match="admin_key_file"):
            await decide_auth(watched, AuthSettings("keys", path, "127.0.0.1", True))

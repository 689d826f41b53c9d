"""Authentication: looks up API keys, caches them briefly, and ends open requests whose key is no longer valid.

A malformed key is refused without a query. Valid keys are cached for a few seconds, refused ones for a shorter time, and
concurrent lookups share one query. Expiry is judged by the database's clock. A notice invalidates the cache of every node
immediately; if the notice is lost, the maximum age of the cache bounds the delay.

While the database is unavailable, cached keys remain valid until they expire. Other keys get status 503, never 401, because
it is unknown whether they are valid.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from everbeat.core.access import LOCAL_CALLER, Caller
from everbeat.core.addresses import Network, client_address
from everbeat.core.errors import StoreError, Unauthenticated
from everbeat.core.keys import ApiKey, caller_from_key, hash_of, is_well_formed
from everbeat.services.events import Emit, ProxyNotTrusted, ignore
from everbeat.services.group_commit import GroupCommit
from everbeat.services.loops import wait_for_event
from everbeat.services.rate_limits import RequestLimits
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from everbeat.store.values import Notice

T = TypeVar("T")

_CACHE_SECONDS = 5.0
_REFUSED_CACHE_SECONDS = 2.0
_OUTAGE_SECONDS = 1.0
_REVALIDATION_SECONDS = 1.0
_TOUCH_SECONDS = 60.0
_MAX_CACHED = 10_000
_MAX_LOOKUPS = 500

_NO_KEY = "Send an API key of this server: Authorization: Bearer eb_…"
_MALFORMED = "This is not a valid API key: a character is wrong or missing. Keys begin with eb_ and have 52 characters."
_UNKNOWN = "This API key is unknown. Check that it belongs to this server."
_REVOKED = "This API key has been revoked."
_EXPIRED = "This API key has expired."


class _CachedKey:
    """A valid key and the time of the query that found it. Times are those of the monotonic clock."""

    __slots__ = ("caller", "expires_at", "hash", "queried_at", "touched_at")

    def __init__(self, key: ApiKey, queried_at: float, expires_at: float, touched_at: float) -> None:
        self.caller = caller_from_key(key)
        self.hash = key.hash
        self.queried_at = queried_at
        self.expires_at = expires_at
        self.touched_at = touched_at


class Authenticator:
    """Authenticates requests. `is_required`: whether a request needs a key. A key that is sent is checked in any case."""

    name = "access"
    deadline_seconds = 15.0

    def __init__(
        self,
        store: Store,
        sessions: KeySessions,
        limits: RequestLimits | None = None,
        *,
        is_required: bool = False,
        trusted_proxies: Sequence[Network] = (),
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self.sessions = sessions
        self.limits = limits or RequestLimits()
        self.is_required = is_required
        self.trusted_proxies = tuple(trusted_proxies)
        self.emit = emit
        self._monotonic = monotonic
        self._cached: OrderedDict[bytes, _CachedKey] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._lookups: dict[bytes, asyncio.Task[_CachedKey]] = {}
        self._lookup_batches: GroupCommit[bytes, tuple[float, datetime, ApiKey | None]] = GroupCommit(
            self._find, max_rows=_MAX_LOOKUPS, count_rows=lambda _hash: 1
        )
        self._used: set[UUID] = set()
        self._change_count = 0
        self._has_warned_about_proxy = False
        self._outage_until = float("-inf")
        self._woken = asyncio.Event()
        store.subscribe(self._on_notice)

    # Authentication

    def address_of(self, peer: str | None, forwarded: Sequence[str]) -> str:
        """Return the address of the client. Forwarded addresses count only if they come from trusted proxies."""
        address = client_address(peer, forwarded, self.trusted_proxies)
        if forwarded and not self.trusted_proxies and self.is_required and not self._has_warned_about_proxy:
            self._has_warned_about_proxy = True
            self.emit(ProxyNotTrusted(address))
        return address

    async def authenticate(self, header: Sequence[bytes], address: str) -> Caller:
        """Return the caller for an Authorization header. Raises Unauthenticated, TooManyRequests or StoreError."""
        if not header:
            if self.is_required:
                raise Unauthenticated(_NO_KEY)
            return LOCAL_CALLER
        text = _bearer(header)
        key_hash = hash_of(text)
        cached = self._find_cached(key_hash)
        if cached is None or not self._is_fresh(cached):
            if cached is None:
                self.limits.check_bad_keys(address)
            try:
                cached = await self._look_up(text, key_hash, cached)
            except Unauthenticated:
                self.limits.note_bad_key(address)
                raise
        if not hmac.compare_digest(cached.hash, key_hash) or cached.caller.key_id is None:
            raise Unauthenticated(_UNKNOWN)
        self.limits.check_key(cached.caller.key_id)
        self._note_use(cached)
        return cached.caller

    def _find_cached(self, key_hash: bytes) -> _CachedKey | None:
        cached = self._cached.get(key_hash)
        if cached is None or cached.expires_at <= self._monotonic():
            return None
        self._cached.move_to_end(key_hash)
        return cached

    def _is_fresh(self, cached: _CachedKey) -> bool:
        now = self._monotonic()
        return now - cached.queried_at < _CACHE_SECONDS or now < self._outage_until

    async def _look_up(self, text: str, key_hash: bytes, cached: _CachedKey | None) -> _CachedKey:
        if cached is None:
            self._check_refused(text, key_hash)
        lookup = self._lookups.get(key_hash)
        if lookup is None:
            lookup = self._lookups[key_hash] = asyncio.create_task(self._query(key_hash))
            lookup.add_done_callback(lambda done: self._on_lookup_done(key_hash, done))
        if cached is None:
            return await asyncio.shield(lookup)
        try:
            # A database that hangs must not delay requests whose key was valid a moment ago.
            async with asyncio.timeout(_REVALIDATION_SECONDS):
                return await asyncio.shield(lookup)
        except (StoreError, TimeoutError):
            self._outage_until = self._monotonic() + _OUTAGE_SECONDS
            return cached

    def _on_lookup_done(self, key_hash: bytes, done: asyncio.Task[_CachedKey]) -> None:
        del self._lookups[key_hash]
        if not done.cancelled():
            done.exception()  # mark it as retrieved: the requests that waited for it may have been cancelled

    def _check_refused(self, text: str, key_hash: bytes) -> None:
        if not is_well_formed(text):
            raise Unauthenticated(_MALFORMED)
        until, reason = self._refused.get(key_hash, (float("-inf"), ""))
        if self._monotonic() < until:
            raise Unauthenticated(reason)

    async def _query(self, key_hash: bytes) -> _CachedKey:
        change_count = self._change_count
        sent, now, key = await self._lookup_batches.add(key_hash)
        is_latest = change_count == self._change_count  # otherwise the result may predate a change that was announced meanwhile
        reason = _UNKNOWN if key is None else _REVOKED if key.revoked_at is not None else _EXPIRED
        if key is None or not key.is_usable(now):
            self._cached.pop(key_hash, None)
            if is_latest:
                _put(self._refused, key_hash, (self._monotonic() + _REFUSED_CACHE_SECONDS, reason))
            raise Unauthenticated(reason)
        before = self._cached.get(key_hash)
        left = float("inf") if key.expires_at is None else (key.expires_at - now).total_seconds()
        queried_at = sent if is_latest else float("-inf")
        cached = _CachedKey(key, queried_at, sent + left, float("-inf") if before is None else before.touched_at)
        _put(self._cached, key_hash, cached)
        return cached

    async def _find(self, hashes: list[bytes]) -> list[tuple[float, datetime, ApiKey | None]]:
        sent = self._monotonic()
        now, keys = await self._store.key_find(hashes=hashes)
        found = {key.hash: key for key in keys}
        return [(sent, now, found.get(one)) for one in hashes]

    def _note_use(self, cached: _CachedKey) -> None:
        now = self._monotonic()
        if now - cached.touched_at >= _TOUCH_SECONDS and cached.caller.key_id is not None:
            cached.touched_at = now
            self._used.add(cached.caller.key_id)

    # The loop: ends the sessions of invalid keys and records the use of keys

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.KEYS:
            self._change_count += 1
            self._refused.clear()
            for cached in self._cached.values():
                cached.queried_at = float("-inf")
            self._woken.set()

    async def run_once(self, now: datetime | None = None) -> bool:
        await self._check_sessions(now)
        if self._used:
            used, self._used = self._used, set()
            await self._store.key_touch(sorted(used), now=now)
        return False

    async def _check_sessions(self, now: datetime | None) -> None:
        ids = self.sessions.key_ids()
        for start in range(0, len(ids), _MAX_LOOKUPS):
            batch = ids[start : start + _MAX_LOOKUPS]
            moment, keys = await self._store.key_find(ids=batch, now=now)
            usable = {key.id for key in keys if key.is_usable(moment)}
            self.sessions.end(id_ for id_ in batch if id_ not in usable)

    async def wait(self) -> None:
        await wait_for_event(self._woken, _CACHE_SECONDS)

    async def close(self) -> None:
        """Do nothing. Uses of keys that have not been recorded yet are lost."""


def _bearer(header: Sequence[bytes]) -> str:
    scheme, _, token = header[0].decode("latin-1").strip().partition(" ")
    if len(header) > 1 or scheme.lower() != "bearer":
        raise Unauthenticated(_NO_KEY)
    return token.strip()


def _put(cache: OrderedDict[bytes, T], key_hash: bytes, value: T) -> None:
    cache[key_hash] = value
    cache.move_to_end(key_hash)
    if len(cache) > _MAX_CACHED:
        cache.popitem(last=False)

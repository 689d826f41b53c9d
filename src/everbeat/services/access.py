"""Who asks: API keys are looked up, remembered for seconds, and watched for as long as something open stands behind them.

A key that cannot be one is refused without asking the database. Those that were found are remembered for a few seconds, those
that were not for less; look-ups that are wanted at the same time are one query. Expiry is judged by the database's clock.
A notice makes every node ask again at once; where a notice is lost, the age of what is remembered bounds the delay.

While the database is away, keys that were found before go on working until they expire; others are answered 503, never 401:
nobody knows whether they are right.
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

_FRESH_SECONDS = 5.0
_UNKNOWN_SECONDS = 2.0
_AWAY_SECONDS = 1.0
_WAIT_SECONDS = 1.0
_TOUCH_SECONDS = 60.0
_MAX_KNOWN = 10_000
_MAX_LOOKUPS = 500

_SEND_ONE = "Send an API key of this server: Authorization: Bearer eb_…"
_NOT_ONE = "This is not an API key: a character is wrong or missing. Keys begin with eb_ and have 52 characters."
_UNKNOWN = "This API key is not known here; is it one of this server?"
_REVOKED = "This API key was revoked."
_EXPIRED = "This API key has expired."


class _Known:
    """A key as it was last seen; times are those of the monotonic clock."""

    __slots__ = ("caller", "expires", "hash", "seen", "touched")

    def __init__(self, key: ApiKey, seen: float, expires: float, touched: float) -> None:
        self.caller = caller_from_key(key)
        self.hash = key.hash
        self.seen = seen
        self.expires = expires
        self.touched = touched


class Authenticator:
    """`is_required`: whether a request without a key is refused. A key that is presented is judged in any case."""

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
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Known]] = {}
        self._lookups: GroupCommit[bytes, tuple[float, datetime, ApiKey | None]] = GroupCommit(
            self._find, max_rows=_MAX_LOOKUPS, count_rows=lambda _hash: 1
        )
        self._used: set[UUID] = set()
        self._changes = 0
        self._has_warned_of_proxy = False
        self._away_until = float("-inf")
        self._woken = asyncio.Event()
        store.subscribe(self._on_notice)

    # Who asks

    def address_of(self, peer: str | None, forwarded: Sequence[str]) -> str:
        """Where a request comes from, as far as those who say so are trusted."""
        address = client_address(peer, forwarded, self.trusted_proxies)
        if forwarded and not self.trusted_proxies and self.is_required and not self._has_warned_of_proxy:
            self._has_warned_of_proxy = True
            self.emit(ProxyNotTrusted(address))
        return address

    async def authenticate(self, header: Sequence[bytes], address: str) -> Caller:
        """Find the caller by the API key of the Authorization header; raises Unauthenticated, TooManyRequests or StoreError."""
        if not header:
            if self.is_required:
                raise Unauthenticated(_SEND_ONE)
            return LOCAL_CALLER
        text = _bearer(header)
        key_hash = hash_of(text)
        known = self._recall(key_hash)
        if known is None or not self._is_fresh(known):
            if known is None:
                self.limits.check_bad_keys(address)
            try:
                known = await self._look_up(text, key_hash, known)
            except Unauthenticated:
                self.limits.note_bad_key(address)
                raise
        if not hmac.compare_digest(known.hash, key_hash) or known.caller.key_id is None:
            raise Unauthenticated(_UNKNOWN)
        self.limits.check_key(known.caller.key_id)
        self._note_use(known)
        return known.caller

    def _recall(self, key_hash: bytes) -> _Known | None:
        known = self._known.get(key_hash)
        if known is None or known.expires <= self._monotonic():
            return None
        self._known.move_to_end(key_hash)
        return known

    def _is_fresh(self, known: _Known) -> bool:
        now = self._monotonic()
        return now - known.seen < _FRESH_SECONDS or now < self._away_until

    async def _look_up(self, text: str, key_hash: bytes, known: _Known | None) -> _Known:
        if known is None:
            self._check_refused(text, key_hash)
        asking = self._asking.get(key_hash)
        if asking is None:
            asking = self._asking[key_hash] = asyncio.create_task(self._ask(key_hash))
            asking.add_done_callback(lambda done: self._asked(key_hash, done))
        if known is None:
            return await asyncio.shield(asking)
        try:
            # A database that hangs must not hold up those who were let in a moment ago.
            async with asyncio.timeout(_WAIT_SECONDS):
                return await asyncio.shield(asking)
        except (StoreError, TimeoutError):
            self._away_until = self._monotonic() + _AWAY_SECONDS
            return known

    def _asked(self, key_hash: bytes, done: asyncio.Task[_Known]) -> None:
        del self._asking[key_hash]
        if not done.cancelled():
            done.exception()  # whoever waited for it was told; perhaps nobody did any more

    def _check_refused(self, text: str, key_hash: bytes) -> None:
        if not is_well_formed(text):
            raise Unauthenticated(_NOT_ONE)
        until, why = self._refused.get(key_hash, (float("-inf"), ""))
        if self._monotonic() < until:
            raise Unauthenticated(why)

    async def _ask(self, key_hash: bytes) -> _Known:
        changes = self._changes
        sent, now, key = await self._lookups.add(key_hash)
        is_latest = changes == self._changes  # what was found may be older than the change that was told of meanwhile
        why = _UNKNOWN if key is None else _REVOKED if key.revoked_at is not None else _EXPIRED
        if key is None or not key.is_usable(now):
            self._known.pop(key_hash, None)
            if is_latest:
                _remember(self._refused, key_hash, (self._monotonic() + _UNKNOWN_SECONDS, why))
            raise Unauthenticated(why)
        before = self._known.get(key_hash)
        left = float("inf") if key.expires_at is None else (key.expires_at - now).total_seconds()
        seen = sent if is_latest else float("-inf")
        known = _Known(key, seen, sent + left, float("-inf") if before is None else before.touched)
        _remember(self._known, key_hash, known)
        return known

    async def _find(self, hashes: list[bytes]) -> list[tuple[float, datetime, ApiKey | None]]:
        sent = self._monotonic()
        now, keys = await self._store.key_find(hashes=hashes)
        found = {key.hash: key for key in keys}
        return [(sent, now, found.get(one)) for one in hashes]

    def _note_use(self, known: _Known) -> None:
        now = self._monotonic()
        if now - known.touched >= _TOUCH_SECONDS and known.caller.key_id is not None:
            known.touched = now
            self._used.add(known.caller.key_id)

    # What changes, as a loop: open sessions are looked after, and uses are written down

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.KEYS:
            self._changes += 1
            self._refused.clear()
            for known in self._known.values():
                known.seen = float("-inf")
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
        await wait_for_event(self._woken, _FRESH_SECONDS)

    async def close(self) -> None:
        """Uses that were not written down yet are lost with the process; nothing else is."""


def _bearer(header: Sequence[bytes]) -> str:
    scheme, _, token = header[0].decode("latin-1").strip().partition(" ")
    if len(header) > 1 or scheme.lower() != "bearer":
        raise Unauthenticated(_SEND_ONE)
    return token.strip()


def _remember(memory: OrderedDict[bytes, T], key_hash: bytes, value: T) -> None:
    memory[key_hash] = value
    memory.move_to_end(key_hash)
    if len(memory) > _MAX_KNOWN:
        memory.popitem(last=False)

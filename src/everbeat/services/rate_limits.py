"""How much one key, one address, and one address with wrong keys may ask for in a second. Memory is bounded: those who came
longest ago are forgotten, and begin with a full budget again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple
from uuid import UUID

from everbeat.core.addresses import rate_limit_key
from everbeat.core.errors import TooManyRequests
from everbeat.core.rates import Rate, admit

_MAX_REMEMBERED = 50_000


class RequestRates(NamedTuple):
    """Requests a second; None or 0: no limit."""

    per_key: float | None = None
    per_address: float | None = None
    bad_keys: float | None = None

    def completed(self) -> RequestRates:
        """With the usual ones where nobody chose: for servers with keys. One on loopback without has no strangers."""
        return RequestRates(*(usual if one is None else one for one, usual in zip(self, _USUAL, strict=True)))


_USUAL = (2000.0, 4000.0, 10.0)


class RateLimiter:
    """One rate for many who are told apart by a key of any kind. Without a rate it admits everybody."""

    def __init__(
        self, rate: Rate | None, *, max_entries: int = _MAX_REMEMBERED, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._max_entries = max_entries
        self._monotonic = monotonic
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def take(self, who: Hashable) -> float:
        """0 if it is within the rate; else after how many seconds it would be."""
        if self._rate is None:
            return 0.0
        now = self._monotonic()
        full_at, wait = admit(self._rate, self._full_at.get(who, now), now)
        if not wait:
            self._full_at[who] = full_at
            self._full_at.move_to_end(who)
            if len(self._full_at) > self._max_entries:
                self._full_at.popitem(last=False)
        return wait

    def wait_of(self, who: Hashable) -> float:
        """What `take` would say, without taking anything."""
        if self._rate is None or who not in self._full_at:
            return 0.0
        now = self._monotonic()
        return admit(self._rate, self._full_at[who], now).wait_seconds

    def __len__(self) -> int:
        return len(self._full_at)


class RequestLimits:
    """The three limits of a server; each one raises TooManyRequests with the time to wait."""

    def __init__(self, rates: RequestRates = RequestRates(), *, monotonic: Callable[[], float] = time.monotonic) -> None:  # noqa: B008
        self._keys = RateLimiter(_rate(rates.per_key, 2), monotonic=monotonic)
        self._addresses = RateLimiter(_rate(rates.per_address, 2), monotonic=monotonic)
        self._bad_keys = RateLimiter(_rate(rates.bad_keys, 5), monotonic=monotonic)

    def check_key(self, key_id: UUID) -> None:
        if wait := self._keys.take(key_id):
            raise TooManyRequests("This API key has sent more requests than this server takes from one in a second.", wait)

    def check_address(self, address: str) -> None:
        if wait := self._addresses.take(rate_limit_key(address)):
            raise TooManyRequests(
                "More requests have come from this address than this server takes from one in a second.", wait
            )

    def check_bad_keys(self, address: str) -> None:
        """Before a key that is not known here is looked at."""
        if wait := self._bad_keys.wait_of(rate_limit_key(address)):
            raise TooManyRequests("Too many wrong API keys have come from this address; no other is looked at for now.", wait)

    def note_bad_key(self, address: str) -> None:
        self._bad_keys.take(rate_limit_key(address))


def _rate(per_second: float | None, bursts: float) -> Rate | None:
    return Rate(per_second, max(1.0, per_second * bursts)) if per_second else None

"""Rate limits of requests: per API key, per address, and per address with wrong keys; and the limit of long polls per key.

Memory is limited: the entries that were not used for the longest time are dropped, and start again with a full budget.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from everbeat.core.addresses import rate_limit_key
from everbeat.core.errors import TooManyRequests
from everbeat.core.rates import Rate, admit

_MAX_ENTRIES = 50_000
_POLL_RETRY_SECONDS = 5.0
_NAMES_PER_POLL = 50


class RequestRates(NamedTuple):
    """Requests per second. None or 0: no limit."""

    per_key: float | None = None
    per_address: float | None = None
    bad_keys: float | None = None

    def with_defaults(self) -> RequestRates:
        """Return the rates with the defaults for those that are None. Only servers that require keys use the defaults."""
        return RequestRates(*(default if one is None else one for one, default in zip(self, _DEFAULTS, strict=True)))


_DEFAULTS = (2000.0, 4000.0, 10.0)


class RateLimiter:
    """A rate limit for each client, identified by any hashable value. Without a rate it admits all requests."""

    def __init__(
        self, rate: Rate | None, *, max_entries: int = _MAX_ENTRIES, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._max_entries = max_entries
        self._monotonic = monotonic
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def take(self, client: Hashable) -> float:
        """Count a request. Returns 0 if it is within the rate, otherwise the seconds until it would be."""
        if self._rate is None:
            return 0.0
        now = self._monotonic()
        full_at, wait = admit(self._rate, self._full_at.get(client, now), now)
        if not wait:
            self._full_at[client] = full_at
            self._full_at.move_to_end(client)
            if len(self._full_at) > self._max_entries:
                self._full_at.popitem(last=False)
        return wait

    def wait_of(self, client: Hashable) -> float:
        """Return what `take` would return, without counting a request."""
        if self._rate is None or client not in self._full_at:
            return 0.0
        now = self._monotonic()
        return admit(self._rate, self._full_at[client], now).wait_seconds

    def __len__(self) -> int:
        return len(self._full_at)


class RequestLimits:
    """The limits of a server on requests and on long polls. Each check raises TooManyRequests with the time to wait."""

    def __init__(
        self,
        rates: RequestRates = RequestRates(),  # noqa: B008
        *,
        max_polls_per_key: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_polls = max_polls_per_key
        self._open_polls: Counter[UUID] = Counter()
        self._keys = RateLimiter(_rate(rates.per_key, 2), monotonic=monotonic)
        self._addresses = RateLimiter(_rate(rates.per_address, 2), monotonic=monotonic)
        self._bad_keys = RateLimiter(_rate(rates.bad_keys, 5), monotonic=monotonic)

    def check_key(self, key_id: UUID) -> None:
        if wait := self._keys.take(key_id):
            raise TooManyRequests("This API key has exceeded its limit of requests per second.", wait)

    def check_address(self, address: str) -> None:
        if wait := self._addresses.take(rate_limit_key(address)):
            raise TooManyRequests("This address has exceeded its limit of requests per second.", wait)

    @contextmanager
    def open_poll(self, key_id: UUID, names: int = 0) -> Iterator[None]:
        """Count a long poll while it is open: more than once if it names many queues and types, because of the memory."""
        weight = 1 + names // _NAMES_PER_POLL
        if self._max_polls is not None and self._open_polls[key_id] and self._open_polls[key_id] + weight > self._max_polls:
            raise TooManyRequests(
                f"This API key may have {self._max_polls} open long polls on this node, and would have more; claim without "
                "wait_seconds, with fewer polls and a larger max, with fewer queues and types, or with another key.",
                _POLL_RETRY_SECONDS,
            )
        self._open_polls[key_id] += weight
        try:
            yield
        finally:
            self._open_polls[key_id] -= weight
            if not self._open_polls[key_id]:
                del self._open_polls[key_id]

    def check_bad_keys(self, address: str) -> None:
        """Check the limit of wrong keys, before a key that is not cached is looked up."""
        if wait := self._bad_keys.wait_of(rate_limit_key(address)):
            raise TooManyRequests("Too many wrong API keys have come from this address. Try again later.", wait)

    def note_bad_key(self, address: str) -> None:
        self._bad_keys.take(rate_limit_key(address))


def _rate(per_second: float | None, bursts: float) -> Rate | None:
    return Rate(per_second, max(1.0, per_second * bursts)) if per_second else None

"""The servers of an app, and which of them is in use. A server is used until it does not respond; then the next one is.

The transports of an app share one object, so that a failure that one of them sees moves the others too: a worker's heartbeats,
claims and reports stay on the same node.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from everbeat.client.urls import server_urls

# An outage is reported after this time, while requests are still repeated.
REPORT_AFTER_SECONDS = 2.0

_log = logging.getLogger("everbeat")


class Servers:
    """The URLs of one or more nodes of the same cluster, in order of preference."""

    def __init__(self, urls: str | Sequence[str], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.urls = server_urls(urls)
        # A worker reports outages itself.
        self.reports_outages = True
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._index = 0
        self._failures: dict[str, str] = {}
        self._unavailable_since: float | None = None
        self._is_reported = False

    def __str__(self) -> str:
        return ", ".join(self.urls)

    @property
    def current(self) -> str:
        return self.urls[self._index]

    @property
    def has_alternatives(self) -> bool:
        return len(self.urls) > 1

    @property
    def reason(self) -> str:
        """Why the servers that failed last did not respond."""
        failures = dict(self._failures)
        if not self.has_alternatives:
            return next(iter(failures.values()), "no response")
        return "; ".join(f"{url}: {reason}" for url, reason in failures.items()) or "no response"

    def failed(self, url: str, reason: str) -> None:
        """Use the next server, unless another request has already moved on from this one."""
        with self._lock:
            self._failures.pop(url, None)
            self._failures[url] = reason
            if self._unavailable_since is None:
                self._unavailable_since = self._monotonic()
            if self.urls[self._index] == url:
                self._index = (self._index + 1) % len(self.urls)

    def responded(self, url: str) -> None:
        if self._unavailable_since is None:
            return
        with self._lock:
            since, self._unavailable_since = self._unavailable_since, None
            was_reported, self._is_reported = self._is_reported, False
            self._failures.clear()
        if was_reported and since is not None:
            _log.warning("Everbeat responds again at %s, after %.1f seconds", url, self._monotonic() - since)

    def report_outage(self, remaining_seconds: float) -> None:
        """Log once per outage that no server responds, and for how long the request is still repeated."""
        with self._lock:
            if self._is_reported or not self.reports_outages:
                return
            self._is_reported = True
        _log.warning("cannot reach Everbeat at %s (%s); trying for another %.0f seconds", self, self.reason, remaining_seconds)

"""Sends pings to the URL of a check. A ping never raises: a job must not fail because of its monitoring."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from everbeat.version import __version__

MAX_BODY_BYTES = 10_000
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_MAX_DELAY_SECONDS = 10.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send a GET without the body, possibly to another host."""

    def redirect_request(self, *_arguments: object) -> None:
        return None


class PingSender:
    """Reports one run. `rid` tells it apart from other runs of the same check."""

    def __init__(
        self,
        url: str,
        *,
        rid: UUID | None = None,
        timeout_seconds: float = 10.0,
        warn: Callable[[str], None] = lambda _text: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url.rstrip("/")
        self._rid = rid or uuid4()
        self._timeout_seconds = timeout_seconds
        self._warn = warn
        self._sleep = sleep
        self._opener = urllib.request.build_opener(_NoRedirects)

    def send(self, signal: str = "", body: bytes = b"", *, tries: int = 3) -> bool:
        """Send `start`, `fail`, `log`, an exit status, or a success. Return whether the server has stored it."""
        problem = ""
        for number in range(tries):
            delay, problem = self._try(signal, body)
            if not problem:
                return True
            if delay is None:
                break
            if number + 1 < tries:
                self._sleep(min(max(delay, 2.0**number), _MAX_DELAY_SECONDS))
        self._warn(f"the ping {signal or 'success'} was not stored: {problem}")
        return False

    def _try(self, signal: str, body: bytes) -> tuple[float | None, str]:
        """Send once. Return the delay before another try (None: it would fail too), and what went wrong."""
        url = f"{self._url}/{signal}" if signal else self._url
        request = urllib.request.Request(
            f"{url}?rid={self._rid}",
            data=body[-MAX_BODY_BYTES:],
            method="POST",
            headers={"User-Agent": f"everbeat/{__version__}", "Content-Type": "text/plain; charset=utf-8"},
        )
        try:
            with self._opener.open(request, timeout=self._timeout_seconds):
                return None, ""
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in _RETRIED:
                return None, f"the server answered {error.code}"
            wait = error.headers.get("Retry-After", "")
            return float(wait) if wait.isdigit() else 0.0, f"the server answered {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            return 0.0, str(reason) or type(error).__name__


def is_ping_url(text: str) -> bool:
    """Return whether a text is a URL to send pings to, and not the name of a check."""
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.netloc)

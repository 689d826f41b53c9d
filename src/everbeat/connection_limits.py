"""The limits on connections: which of them a new connection replaces, and which requests are served beyond the limits.

A connection is idle while it waits for the head of a request. An idle connection can be closed without the loss of a request,
so idle connections cannot keep others out: a new connection replaces an idle one of its own address if the address is at its
limit, and one of the address with the most connections if the server is at its limit.

If all connections are busy, a few more are accepted for the requests of monitoring systems only (`health_only`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from typing import Protocol

from everbeat.api.messages import AsgiApp, Receive, Scope, Send
from everbeat.api.problems import OVERLOADED, HttpProblem
from everbeat.http_protocol import problem_message

MAX_RESERVED_CONNECTIONS = 16
MONITORING_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})

_SEARCHED = 64
_ADDRESSES_TRIED = 8
_ORDER_SECONDS = 0.1
_IDLE_SECONDS = 1.0


class LimitedConnection(Protocol):
    @property
    def idle_seconds(self) -> float | None:
        """For how long the connection has been waiting for the head of a request; None while it is busy."""

    def __hash__(self) -> int: ...


class ConnectionAdmission(Enum):
    """Whether a connection is accepted, and for which requests."""

    FULL = "full"
    HEALTH_ONLY = "health_only"
    REFUSED = "refused"


class ConnectionTable:
    """The open connections by address. `close` is called for a connection that a new one replaces.

    `is_exempt`: addresses without a limit of their own, such as trusted proxies. Their connections are replaced last.
    """

    def __init__(
        self,
        max_connections: int,
        max_per_address: int,
        close: Callable[[LimitedConnection], None],
        is_exempt: Callable[[str], bool] = lambda _address: False,
        *,
        max_reserved: int = MAX_RESERVED_CONNECTIONS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._max_reserved = max_reserved
        self._close = close
        self._is_exempt = is_exempt
        self._monotonic = monotonic
        self._by_address: dict[str, dict[LimitedConnection, None]] = {}
        self._reserved: dict[LimitedConnection, None] = {}
        self._count = 0
        self._order: list[str] = []
        self._ordered_at = float("-inf")

    def admit(self, address: str) -> ConnectionAdmission:
        """Decide about a new connection. A connection that it replaces is closed."""
        own = self._by_address.get(address, {})
        if len(own) >= self._max_per_address and not self._is_exempt(address):
            if self._replace_one(own):
                return ConnectionAdmission.FULL
        elif self._count < self._max_connections or any(map(self._replace_one, self._greediest())):
            return ConnectionAdmission.FULL
        if len(self._reserved) < self._max_reserved or self._replace_one(self._reserved):
            return ConnectionAdmission.HEALTH_ONLY
        return ConnectionAdmission.REFUSED

    def add(self, address: str, connection: LimitedConnection, admission: ConnectionAdmission) -> None:
        if admission is ConnectionAdmission.HEALTH_ONLY:
            self._reserved[connection] = None
        else:
            self._by_address.setdefault(address, {})[connection] = None
            self._count += 1

    def discard(self, address: str, connection: LimitedConnection) -> None:
        """Remove a connection, unless it was replaced before."""
        if connection in self._reserved:
            del self._reserved[connection]
            return
        own = self._by_address.get(address, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._by_address[address]

    def _replace_one(self, connections: dict[LimitedConnection, None]) -> bool:
        """Close an idle one of these connections. The first ones are examined, and moved to the end."""
        found: LimitedConnection | None = None
        longest = -1.0
        for connection in list(islice(connections, _SEARCHED)):
            idle_seconds = connection.idle_seconds
            if idle_seconds is not None and idle_seconds > longest:
                found, longest = connection, idle_seconds
                if longest >= _IDLE_SECONDS:
                    break
            del connections[connection]
            connections[connection] = None
        if found is None:
            return False
        del connections[found]
        if connections is not self._reserved:
            self._count -= 1
        self._close(found)
        return True

    def _greediest(self) -> Iterator[dict[LimitedConnection, None]]:
        """The connections of the addresses with the most connections. The order is at most a tenth of a second old."""
        now = self._monotonic()
        if now - self._ordered_at >= _ORDER_SECONDS:
            self._ordered_at = now
            self._order = sorted(self._by_address, key=lambda one: (self._is_exempt(one), -len(self._by_address[one])))
            del self._order[_ADDRESSES_TRIED:]
        for address in self._order:
            if own := self._by_address.get(address):
                yield own


def health_only(app: AsgiApp) -> AsgiApp:
    """Return an app that serves only the requests of monitoring systems."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in MONITORING_PATHS:
            await app(scope, receive, send)
            return
        detail = "All connections of this server, or of this address, are in use. Try again soon, or use another node."
        headers, body = problem_message(HttpProblem(OVERLOADED, detail))
        headers.append((b"retry-after", b"2"))
        await send({"type": "http.response.start", "status": OVERLOADED.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": False})

    return serve

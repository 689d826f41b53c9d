"""The ASGI app that a server runs. It passes requests to the API once the database is connected and migrated.

Until then, /healthz returns 200, because the process is alive, and all other paths return 503. The API is not called, because
its services may need the database.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

import msgspec
import uuid_utils

from everbeat.api.fair_scheduling import FairScheduler
from everbeat.api.messages import AsgiApp, Receive, Scope, Send
from everbeat.api.problems import MEDIA_TYPE, UNAVAILABLE, HttpProblem, problem_body


class StartupGate:
    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._scheduler = FairScheduler()
        self.is_open = False
        self.database_status = "not connected yet"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_open:
            await self._scheduler.run(cast(Coroutine[Any, Any, None], self._app(scope, receive, send)))
        elif scope["path"] == "/healthz":
            await _send(send, 200, {"status": "ok", "loops": {}})
        elif scope["path"] == "/readyz":
            await _send(send, 503, {"status": "unready", "database": self.database_status})
        else:
            await _send(send, 503, None)


async def _send(send: Send, status: int, value: dict[str, Any] | None) -> None:
    """Send a JSON value, or the problem if it is None."""
    request_id = str(uuid_utils.uuid7())
    if value is None:
        problem = HttpProblem(UNAVAILABLE, "The node is waiting for its database; try again soon.")
        body, media_type = problem_body(problem, request_id), MEDIA_TYPE
    else:
        body, media_type = msgspec.json.encode(value), "application/json"
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-request-id", request_id.encode()),
    ]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})

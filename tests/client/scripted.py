"""A small HTTP server that stores tasks by their keys and fails on request: unavailable, busy, or a closed connection."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

import msgspec

from everbeat.core.responses import (
    BackfillResponse,
    DeadLetterResponse,
    PurgeResponse,
    ReplayResponse,
    ScheduleResponse,
    TaskResponse,
)
from tests.client.samples import sample

Fault = Literal["good", "cut before", "cut after", "unavailable", "busy", "moved", "close idle"]


class ReceivedRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class ScriptedServer:
    """An HTTP server with scripted faults. Each request uses up one of `faults`; when none is left, all requests succeed."""

    def __init__(self, *faults: Fault, tls: ssl.SSLContext | None = None) -> None:
        self.faults = list(faults)
        self.received: list[ReceivedRequest] = []
        self.tasks: dict[UUID, Any] = {}
        self.by_key: dict[str, UUID] = {}
        self.connections: set[Any] = set()
        self.closed_idle = 0
        self._lock = threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = msgspec.json.decode(self.rfile.read(length)) if length else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.connections.add(self.client_address)
                script.response(self, ReceivedRequest(self.command, self.path, headers, body))

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[ScriptedServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def response(self, handler: BaseHTTPRequestHandler, received: ReceivedRequest) -> None:
        with self._lock:
            self.received.append(received)
            fault = self.faults.pop(0) if self.faults else "good"
            if fault == "cut before":
                return self._cut(handler)
            if fault in ("unavailable", "busy"):
                detail = {"detail": f"the server is {fault}"}
                return self._send(handler, 503 if fault == "unavailable" else 429, detail, {"retry-after": "0"})
            if fault == "moved":
                return self._send(handler, 307, {}, {"location": "/v1/other"})
            status, body = self._process(received)
        if fault == "cut after":
            return self._cut(handler)
        self._send(handler, status, body)
        if fault == "close idle":
            self._cut(handler)
            self.closed_idle += 1
        return None

    def _process(self, received: ReceivedRequest) -> tuple[int, Any]:
        if (received.method, received.path) == ("POST", "/v1/tasks"):
            id_ = self._submit(received.headers.get("idempotency-key"), received.body)
            return 201, self.tasks[id_]
        if received.path == "/v1/tasks/batch":
            key = received.headers.get("idempotency-key")
            keys = [task.get("idempotency_key") or f"{key} {index}" for index, task in enumerate(received.body["tasks"])]
            return 200, {"ids": [self._submit(*pair) for pair in zip(keys, received.body["tasks"], strict=True)]}
        if received.path == "/v1/worker/claim":
            return 200, {"tasks": []}
        if received.method == "GET" and received.path.startswith("/v1/tasks/") and received.path.count("/") == 3:
            id_ = UUID(received.path.rpartition("/")[2].partition("?")[0])
            return (200, self.tasks[id_]) if id_ in self.tasks else (404, {"detail": "no such task"})
        return 200, _body_of(received)

    def _submit(self, key: str | None, task: Any) -> UUID:
        if key is not None and key in self.by_key:
            return self.by_key[key]
        id_ = uuid4()
        target = {"kind": "worker", "type": task["type"], "queue": task.get("queue", "default")}
        self.tasks[id_] = sample(TaskResponse, id=id_, state="ready", target=target, **task)
        if key is not None:
            self.by_key[key] = id_
        return id_

    def _cut(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, handler: BaseHTTPRequestHandler, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        encoded = msgspec.json.encode(body)
        handler.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(encoded)))
        handler.end_headers()
        handler.wfile.write(encoded)


_RESPONSES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    (r"POST /v1/schedules/[^/]+/trigger", TaskResponse),
    (r"POST /v1/schedules/[^/]+/backfill", BackfillResponse),
    (r"(GET|PUT) /v1/schedules/[^/]+|POST /v1/schedules/[^/]+/(pause|resume)", ScheduleResponse),
    (r"POST /v1/tasks/[^/]+/\w+|POST /v1/dead-letters/[^/]+/replay", TaskResponse),
    (r"POST /v1/dead-letters/replay", ReplayResponse),
    (r"POST /v1/dead-letters/purge", PurgeResponse),
    (r"GET /v1/dead-letters/[^/]+", DeadLetterResponse),
)


def _body_of(received: ReceivedRequest) -> dict[str, Any]:
    requested = f"{received.method} {received.path.partition('?')[0]}"
    for pattern, type_ in _RESPONSES:
        if re.fullmatch(pattern, requested):
            return sample(type_)
    return {"method": received.method, "path": received.path, "items": [], "next_cursor": None}

"""A small HTTP server that keeps tasks by their keys and misbehaves as told: away, cut before or after the work, busy."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

import msgspec

Fault = Literal["good", "cut before", "cut after", "away", "busy"]


class Seen(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class ScriptedServer:
    """`moods` are used up one per request; then it is good."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = list(faults)
        self.seen: list[Seen] = []
        self.tasks: dict[UUID, Any] = {}
        self.by_key: dict[str, UUID] = {}
        self.connections: set[Any] = set()
        self._lock = threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = msgspec.json.decode(self.rfile.read(length)) if length else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.connections.add(self.client_address)
                script.response(self, Seen(self.command, self.path, headers, body))

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

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

    def response(self, handler: BaseHTTPRequestHandler, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)
            fault = self.faults.pop(0) if self.faults else "good"
            if fault == "cut before":
                return self._cut(handler)
            if fault in ("away", "busy"):
                detail = {"detail": f"the server is {fault}"}
                return self._send(handler, 503 if fault == "away" else 429, detail, {"retry-after": "0"})
            status, body = self._work(seen)
        if fault == "cut after":
            return self._cut(handler)
        return self._send(handler, status, body)

    def _work(self, seen: Seen) -> tuple[int, Any]:
        if (seen.method, seen.path) == ("POST", "/v1/tasks"):
            id_ = self._submit(seen.headers.get("idempotency-key"), seen.body)
            return 201, {"id": id_, **seen.body}
        if seen.path == "/v1/tasks/batch":
            key = seen.headers.get("idempotency-key")
            keys = [task.get("idempotency_key") or f"{key} {place}" for place, task in enumerate(seen.body["tasks"])]
            return 200, {"ids": [self._submit(*pair) for pair in zip(keys, seen.body["tasks"], strict=True)]}
        if seen.path == "/v1/worker/claim":
            return 200, {"tasks": []}
        if seen.method == "GET" and seen.path.startswith("/v1/tasks/") and seen.path.count("/") == 3:
            id_ = UUID(seen.path.rpartition("/")[2].partition("?")[0])
            return (200, self.tasks[id_]) if id_ in self.tasks else (404, {"detail": "no such task"})
        return 200, {"method": seen.method, "path": seen.path, "items": [], "next_cursor": None}

    def _submit(self, key: str | None, task: Any) -> UUID:
        if key is not None and key in self.by_key:
            return self.by_key[key]
        id_ = uuid4()
        self.tasks[id_] = {"id": id_, "state": "ready", **task}
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

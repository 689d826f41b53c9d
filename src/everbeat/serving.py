"""The port of a server: held until it is needed, with or without TLS, and for so many connections as there are files for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as Granian

from everbeat.config import Settings
from everbeat.core.errors import SettingsError

_OTHER_FILES = 256
_HEAD_BYTES = 64 * 1024
_TOGETHER_SECONDS = 0.5


def make_server(asgi: Any, settings: Settings) -> Granian:
    try:
        return Granian(
            asgi,
            address=settings.host,
            port=settings.port,
            interface=Interfaces.ASGINL,
            log_enabled=False,
            websockets=False,
            backlog=1024,
            backpressure=raise_file_limit(settings.max_connections),
            # While it waits to see which version is spoken, the server knows no deadline; so there is one version only.
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(settings.header_deadline_seconds * 1000), max_buffer_size=_HEAD_BYTES
            ),
            ssl_cert=_path(settings.tls_certificate),
            ssl_key=_path(settings.tls_key),
            ssl_ca=_path(settings.tls_client_ca),
            ssl_client_verify=settings.tls_client_ca is not None,
        )
    except Exception as error:
        if settings.tls_certificate is None:
            raise
        raise SettingsError(f"settings: tls_certificate and tls_key cannot be used ({error})") from None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def raise_file_limit(most: int) -> int:
    """How many connections are accepted; whoever comes beyond that waits at the door.

    Every idle worker holds one. Accepted without a limit, they would take the files that the database needs.
    """
    try:
        import resource
    except ImportError:  # Windows
        return most
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        wanted = min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return max(64, wanted - _OTHER_FILES)


class HangUp:
    """Closes connections that the server itself would keep: answered, their bodies given up, and the client stays silent.

    The server has no handle on its connections to offer, so they are found among the files of this process by the address of
    the client, all of them in one pass. Where there is no list of files (only Linux has one) they stay until the client goes.
    """

    def __init__(self) -> None:
        self._clients: set[tuple[str, int]] = set()
        self._is_due = False

    def __call__(self, client: Sequence[Any]) -> None:
        self._clients.add((client[0], int(client[1])))  # the server writes ports as text
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_TOGETHER_SECONDS, self._run)

    def _run(self) -> None:
        clients, self._clients, self._is_due = self._clients, set(), False
        with contextlib.suppress(OSError):
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    _shut(int(name), clients)


def _shut(file: int, clients: Collection[tuple[str, int]]) -> None:
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        return
    with socket.socket(fileno=os.dup(file)) as connection:
        peer = connection.getpeername()
        # One that was heard a moment ago is another: the client has gone by itself, and somebody else got its port.
        if isinstance(peer, tuple) and peer[:2] in clients and _silent_seconds(connection) > _TOGETHER_SECONDS * 2:
            connection.shutdown(socket.SHUT_RDWR)


def _silent_seconds(connection: socket.socket) -> float:
    """How long ago anything came; Linux tells it among much else, as the twelfth number behind eight bytes of flags."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 56)
    milliseconds: int = struct.unpack_from("I", told, 52)[0]
    return milliseconds / 1000


def reserve(settings: Settings) -> socket.socket:
    """Hold the port until the server takes it: the server shares ports in silence, so a taken one must be noticed here."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); "
            "is another Everbeat running there? choose another one with --port"
        ) from None
    return listener

"""The HTTP server: its listening socket, TLS, and the limits on connections.

The server runs in the event loop of the node. The number of connections is limited, in all and per client address, so that the
process does not run out of file descriptors, and no client can keep others out (connection_limits.py). Addresses of trusted
proxies have no limit of their own, because each represents many clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

import structlog

from everbeat.api.messages import AsgiApp
from everbeat.config import Settings
from everbeat.connection_limits import ConnectionAdmission, ConnectionTable, LimitedConnection, health_only
from everbeat.core.addresses import is_in_networks, parse_networks, rate_limit_key
from everbeat.core.errors import SettingsError
from everbeat.http_protocol import ConnectionSettings, DateHeader, ServerConnection

_OTHER_FILES = 256
_BACKLOG = 1024
_ACCEPTS_PER_ITERATION = 64
_MIN_PER_ADDRESS = 16
_ACCEPT_RETRY_SECONDS = 0.5
_LOG_SECONDS = 60.0
_ABORT_SECONDS = 1.0
_RESERVED_HEAD_SECONDS = 2.0

log = structlog.get_logger("everbeat.http")


class HttpServer:
    """Serves an ASGI app on a listening socket."""

    def __init__(self, app: AsgiApp, settings: Settings) -> None:
        self._app = app
        self._settings = ConnectionSettings(settings.header_deadline_seconds, settings.write_deadline_seconds)
        self._ssl = ssl_context(settings)
        self._date = DateHeader()
        self._open = 0
        self._proxies = parse_networks(settings.trusted_proxies)
        self._table = self._connection_table(settings)
        self._connections: set[ServerConnection] = set()
        self._attaching: dict[LimitedConnection, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._logged_at = float("-inf")

    def _connection_table(self, settings: Settings) -> ConnectionTable:
        max_connections = raise_file_limit(settings.max_connections)
        max_per_address = settings.max_connections_per_address or max(_MIN_PER_ADDRESS, max_connections // 2)
        return ConnectionTable(
            max_connections, max_per_address, self._close, lambda address: is_in_networks(address, self._proxies)
        )

    @property
    def open_connections(self) -> int:
        return self._open

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled, then close the listening socket."""
        loop = asyncio.get_running_loop()
        with listener:
            listener.setblocking(False)
            while True:
                for _ in range(_ACCEPTS_PER_ITERATION):
                    try:
                        accepted = await self._accept(loop, listener)
                    except OSError as error:  # no file descriptor is left, or the connection ended before it was accepted
                        log.warning("accept_failed", error=str(error))
                        await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                    else:
                        self._admit(loop, *accepted)
                await asyncio.sleep(0)

    async def stop(self, seconds: float) -> None:
        """Close idle connections, wait up to `seconds` for active requests, and abort the remaining connections."""
        self._is_stopping = True
        for connection in tuple(self._connections):
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wait_open(0)
        for task in tuple(self._attaching.values()):
            task.cancel()
        for connection in tuple(self._connections):
            connection.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                await self._wait_open(0)

    async def _wait_open(self, count: int) -> None:
        """Wait until at most `count` connections are open."""
        while self._open > count:
            self._changed.clear()
            await self._changed.wait()

    async def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> tuple[socket.socket, str]:
        try:
            connection, address = listener.accept()
        except (BlockingIOError, InterruptedError):
            connection, address = await loop.sock_accept(listener)
        return connection, str(address[0])

    def _admit(self, loop: asyncio.AbstractEventLoop, connection: socket.socket, peer: str) -> None:
        address = peer if is_in_networks(peer, self._proxies) else rate_limit_key(peer)
        admission = self._table.admit(address)
        if admission is not ConnectionAdmission.FULL and loop.time() - self._logged_at > _LOG_SECONDS:
            self._logged_at = loop.time()
            log.warning("connection_limit_reached", address=address, connections=self._open)
        if admission is ConnectionAdmission.REFUSED:
            connection.close()
            return
        connection.setblocking(False)
        self._open += 1

        def on_closed(closed: ServerConnection) -> None:
            self._connections.discard(closed)
            self._table.discard(address, closed)
            self._open -= 1
            self._changed.set()

        protocol = self._protocol(admission, on_closed)
        self._table.add(address, protocol, admission)
        self._connections.add(protocol)

        def on_attached(_task: asyncio.Task[None]) -> None:
            del self._attaching[protocol]
            if not protocol.was_connected:  # the handshake failed, or the task was cancelled, perhaps before it began
                with contextlib.suppress(OSError, RuntimeError):
                    connection.close()
                on_closed(protocol)

        task = self._attaching[protocol] = loop.create_task(self._attach(loop, connection, protocol))
        task.add_done_callback(on_attached)

    def _protocol(self, admission: ConnectionAdmission, on_closed: Callable[[ServerConnection], None]) -> ServerConnection:
        is_tls, settings = self._ssl is not None, self._settings
        if admission is ConnectionAdmission.FULL:
            return ServerConnection(self._app, settings, self._date, on_closed, is_tls=is_tls)
        settings = settings._replace(head_seconds=min(settings.head_seconds, _RESERVED_HEAD_SECONDS))
        return ServerConnection(health_only(self._app), settings, self._date, on_closed, is_tls=is_tls, closes=True)

    def _close(self, connection: LimitedConnection) -> None:
        """Close an idle connection, in whose place another one is accepted."""
        assert isinstance(connection, ServerConnection)
        if (task := self._attaching.get(connection)) is not None:
            task.cancel()
        connection.abort()

    async def _attach(self, loop: asyncio.AbstractEventLoop, connection: socket.socket, protocol: ServerConnection) -> None:
        """Create the transport of an accepted socket, after the handshake if TLS is used."""
        if self._is_stopping:
            protocol.stop()
        timeout = None if self._ssl is None else self._settings.head_seconds
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._ssl, ssl_handshake_timeout=timeout)
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError
            with contextlib.suppress(OSError, RuntimeError):
                connection.close()


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password argument, OpenSSL would prompt for the password of an encrypted key on the terminal.
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password="")
        if settings.tls_client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(settings.tls_client_ca)
    except (OSError, ValueError) as error:
        raise SettingsError(f"settings: tls_certificate and tls_key cannot be used ({error})") from None
    return context


def raise_file_limit(max_connections: int) -> int:
    """Raise the limit of open files as far as necessary and possible. Return how many connections it allows.

    Every idle worker has an open connection. Without a limit, connections could use up the file descriptors that the database
    needs.
    """
    try:
        import resource
    except ImportError:  # Windows
        return max_connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        wanted = min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return max(64, wanted - _OTHER_FILES)


def listen(settings: Settings) -> socket.socket:
    """Open the listening socket."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # On Windows, SO_REUSEADDR would let a second server listen on the same port.
    listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); "
            "is another Everbeat running there? choose another port with --port"
        ) from None
    return listener

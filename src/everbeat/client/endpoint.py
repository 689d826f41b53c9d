"""The settings of connections to a server: address, headers, TLS, proxy and timeouts. Used by both HTTP transports."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from everbeat.version import __version__

if TYPE_CHECKING:
    import ssl

TIMEOUT_SECONDS = 15.0
CONNECT_TIMEOUT_SECONDS = 5.0
MAX_CONNECTIONS = 100
KEEPALIVE_SECONDS = 60.0
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class Endpoint(NamedTuple):
    """The parts of a server URL. `base_path` has no trailing slash. `tls` is None for http."""

    url: str
    host: str
    port: int
    base_path: str
    headers: dict[str, str]
    tls: ssl.SSLContext | None
    proxy: str | None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return urlsplit(self.url).netloc


def endpoint_of(url: str, api_key: str | None) -> Endpoint:
    """Return the endpoint of a URL, with the proxy and the trusted certificates from the environment."""
    parts = urlsplit(url)
    # Responses are small, and the server does not compress them.
    headers = {"user-agent": f"everbeat-python/{__version__}", "accept": "application/json", "accept-encoding": "identity"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    is_tls = parts.scheme == "https"
    host = parts.hostname or ""
    return Endpoint(
        url.rstrip("/"),
        host,
        parts.port or (443 if is_tls else 80),
        parts.path.rstrip("/"),
        headers,
        _tls_context() if is_tls else None,
        None if host in _LOOPBACK_HOSTS else _proxy_of(parts.scheme, host),
    )


def _tls_context() -> ssl.SSLContext:
    """Return a context that trusts the system's certificates, or those in SSL_CERT_FILE."""
    import ssl

    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))


def _proxy_of(scheme: str, host: str) -> str | None:
    """Return the proxy from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, or from the system settings that Python reads."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"

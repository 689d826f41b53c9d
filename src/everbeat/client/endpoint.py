"""How to reach a server: address, default headers, TLS context, proxy and time limits. Shared by both HTTP transports."""

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
    """`base_path` is the path of the URL, without a slash at the end. `tls` is None for http."""

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
    """Reads the proxy and the trusted certificates from the environment."""
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
    """Trusts the certificates of the system, or those in SSL_CERT_FILE."""
    import ssl

    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))


def _proxy_of(scheme: str, host: str) -> str | None:
    """HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, and the settings of the system where Python knows them."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"

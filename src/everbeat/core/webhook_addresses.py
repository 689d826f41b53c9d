"""Which URLs and addresses webhooks may be sent to. Pure: the caller resolves names, and passes the addresses.

Everything that is not public is refused, unless the operator has allowed it: loopback, private, shared, link-local (cloud
metadata), multicast and reserved networks, in every notation, and IPv6 addresses that contain an IPv4 address (mapped, NAT64,
6to4, Teredo). A URL is judged when it is registered and before each delivery, and the addresses of its name when a connection
is opened to them: a name whose address changes in between is refused too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from everbeat.core.addresses import Address, Network

MAX_URL_CHARACTERS = 2048

_CONTROL = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
# The part of a URL up to its path, query or fragment, as urlsplit reads it.
_ORIGIN = re.compile(r"[^:/?#]+://[^/?#]*")
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})?(\.[a-z0-9_]([a-z0-9_-]{0,62})?)*")
# What inet_aton and browsers read as a number: parts in decimal, octal or hexadecimal, in one to four parts.
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}")
_PRIVATE_NAMES = (
    "localhost",
    "localdomain",
    "local",
    "internal",
    "intranet",
    "home.arpa",
    "in-addr.arpa",
    "ip6.arpa",
    "cluster.local",
    "metadata",
)
# Ports of well-known services that are not HTTP. A request sent to them may be read as commands.
_REFUSED_PORTS = frozenset(
    int(port)
    for port in re.findall(
        r"\d+",
        """
        0 1 7 9 11 13 15 17 19 20 21 22 23 25 37 42 43 53 69 77 79 87 95 101 102 103 104 109 110 111 113 115 117 119 123 135
        137 139 143 161 179 389 427 445 465 512 513 514 515 526 530 531 532 540 548 554 556 563 587 601 636 873 989 990 993 995
        1719 1720 1723 2049 2375 2379 3306 3389 3659 4045 4190 5060 5061 5432 5672 6000 6379 6566 6665 6666 6667 6668 6669 6679
        6697 9042 9092 10080 11211 27017
        """,
    )
)

# https://www.iana.org/assignments/iana-ipv4-special-registry and its IPv6 twin. `is_global` of Python 3.11 differs from them.
_NOT_PUBLIC_V4 = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    ipaddress.ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
_NAT64 = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48"))


class WebhookRules(NamedTuple):
    """The operator's exceptions, and whether this server has an address for callbacks.

    `networks` may be connected to although they are not public. `hosts` are names that are trusted whatever their address is;
    `*.example.org` stands for all names below it.
    """

    networks: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()
    has_callbacks: bool = False

    def trusts(self, host: str) -> bool:
        return any(host == one or (one.startswith("*.") and host.endswith(one[1:])) for one in self.hosts)


PUBLIC_ONLY = WebhookRules()


def parse_webhook_allow(texts: Sequence[str]) -> WebhookRules:
    """Parse the setting webhook_allow: networks, addresses and names. Raises ValueError with the wrong entry."""
    networks: list[Network] = []
    hosts: list[str] = []
    for text in texts:
        name = text.lower().rstrip(".")
        if _NAME.fullmatch(name.removeprefix("*.")) and not _NUMERIC.fullmatch(name):
            hosts.append(name)
            continue
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            raise ValueError(f"{text[:100]!r} is not a network such as 10.0.0.0/8, an address or a host name") from None
    return WebhookRules(tuple(networks), tuple(hosts))


def url_message(url: str, rules: WebhookRules | None = None) -> str | None:
    """Return what is wrong with the URL of a webhook, or None. Without rules, its address is not judged."""
    if len(url) > MAX_URL_CHARACTERS:
        return f"must be at most {MAX_URL_CHARACTERS} characters"
    if _CONTROL.search(url):
        return "must not contain spaces, control characters or backslashes"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        return f"is not a valid URL: {error}"
    if parts.scheme not in ("http", "https") or not host:
        return "must be an absolute http:// or https:// URL"
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        return "must not contain a user name or password; use a header"
    return _host_message(parts, host, port, rules)


class JudgedUrl(NamedTuple):
    """What is wrong with a URL, or None, and its host name."""

    message: str | None
    host: str


class UrlJudge:
    """Judges URLs as `url_message` does. All that depends on the scheme, the host and the port is judged once per origin."""

    def __init__(self, rules: WebhookRules, *, max_kept: int = 10_000) -> None:
        self._rules = rules
        self._max_kept = max_kept
        self._origins: dict[str, JudgedUrl] = {}

    def judge(self, url: str) -> JudgedUrl:
        match = _ORIGIN.match(url)
        if match is None or len(url) > MAX_URL_CHARACTERS or _CONTROL.search(url):
            return JudgedUrl(url_message(url, self._rules), "")
        origin = match[0]
        judged = self._origins.get(origin)
        if judged is None:
            if len(self._origins) >= self._max_kept:
                self._origins.clear()
            message = url_message(origin, self._rules)
            judged = JudgedUrl(message, "" if message else (urlsplit(origin).hostname or "").rstrip("."))
            self._origins[origin] = judged
        return judged


def _host_message(parts: SplitResult, host: str, port: int | None, rules: WebhookRules | None) -> str | None:
    if not host.isascii():
        return "must have an ASCII host name; write an international name in its xn-- form"
    host = host.rstrip(".")
    if "[" in parts.netloc:
        return _address_message(host, port, rules)
    if _NUMERIC.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return "must have an IPv4 address as four decimal numbers without leading zeros"
        return _address_message(host, port, rules)
    if not _NAME.fullmatch(host):
        return "must have a valid host name"
    if rules is None or rules.trusts(host):
        return None
    is_private = any(host == name or host.endswith(f".{name}") for name in _PRIVATE_NAMES)
    # Networks for which the operator has made an exception may be reached by any name, which is judged at the connection.
    if is_private and not rules.networks:
        return f"must not be in a private network; {_HINT}"
    return None if is_private else _port_message(port)


_HINT = "the operator of the server can allow it with webhook_allow"


def _port_message(port: int | None) -> str | None:
    return f"must not use the port {port}, which is not for HTTP; {_HINT}" if port in _REFUSED_PORTS else None


def _address_message(host: str, port: int | None, rules: WebhookRules | None) -> str | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "must have a valid IP address"
    if rules is None:
        return None
    if not may_connect(address, rules):
        return f"must not be an address that is not public; {_HINT}"
    return None if _is_allowed(address, rules) else _port_message(port)


def may_connect(address: Address, rules: WebhookRules = PUBLIC_ONLY) -> bool:
    """Return whether a webhook may be sent to the address: it is public, or the operator has allowed it."""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return False
    embedded = _embedded(address)
    if embedded is not None and not may_connect(embedded, rules):
        return False
    return is_public(address) or _is_allowed(address, rules)


def is_public(address: Address) -> bool:
    """Return whether the address is globally reachable by the registries of special-purpose addresses."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _NOT_PUBLIC_V6)


def _is_allowed(address: Address, rules: WebhookRules) -> bool:
    return any(address.version == network.version and address in network for network in rules.networks)


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None

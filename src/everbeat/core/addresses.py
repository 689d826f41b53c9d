"""Client addresses: reads them from the headers of trusted proxies, and groups them by network for rate limits."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from everbeat.core.errors import InvalidInput

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

UNKNOWN = "unknown"
_IPV6_PREFIX = 64
_MAX_HOPS = 32


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse networks such as 10.0.0.0/8, or single addresses."""
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            raise InvalidInput.of("trusted_proxies", f"{text!r} is not a network; use a network such as 10.0.0.0/8") from None
    return tuple(networks)


def client_address(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the address of the client: the peer, or the address for which a trusted proxy forwards.

    Every proxy appends the address of its peer, so the list is read from the right. Entries to the left of the first address
    that is not trusted may be forged.
    """
    if not trusted:
        return _plain(peer or "")
    address = _address(peer or "")
    if address is None:
        return UNKNOWN
    hops = [hop.strip() for header in forwarded for hop in header.split(",")]
    for hop in reversed(hops[-_MAX_HOPS:]):
        if not _is_in(address, trusted):
            break
        previous = _address(hop)
        if previous is None:
            break
        address = previous
    return str(address)


def is_in_networks(address: str, networks: Sequence[Network]) -> bool:
    parsed = _address(address)
    return parsed is not None and _is_in(parsed, networks)


@lru_cache(4096)
def rate_limit_key(address: str) -> str:
    """Return the key of an address for rate limits: for IPv6 its /64 network, because one client usually has a whole /64."""
    parsed = _address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
    return address


@lru_cache(4096)
def _plain(text: str) -> str:
    address = _address(text)
    return UNKNOWN if address is None else str(address)


@lru_cache(4096)
def _address(text: str) -> Address | None:
    if text.startswith("[") and "]" in text:
        text = text[1 : text.index("]")]
    elif text.count(":") == 1:  # an IPv4 address with a port, which some proxies send
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)

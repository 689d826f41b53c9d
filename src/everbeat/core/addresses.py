"""Addresses that requests come from: seen through proxies that are trusted, and grouped as their owners are given them."""

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
    """Networks as 10.0.0.0/8, or single addresses."""
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            raise InvalidInput.of("trusted_proxies", f"{text!r} is no network; write it like 10.0.0.0/8 or fd00::/8") from None
    return tuple(networks)


def client_address(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Who asks: the peer, or, as long as the one that says so is a trusted proxy, whom it forwards for.

    Every proxy appends whom it was asked by, so the list is read from the right: what is left of the first address that is not
    trusted may be invented.
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
        further = _address(hop)
        if further is None:
            break
        address = further
    return str(address)


@lru_cache(4096)
def rate_limit_key(address: str) -> str:
    """Whose budget an address uses: that of its network of 64 bits if it is IPv6, of which everybody has a whole one."""
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
    elif text.count(":") == 1:  # an IPv4 address with a port, as some proxies write it
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)

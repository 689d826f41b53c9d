"""The client address behind trusted proxies, and the key of its rate limit."""

from __future__ import annotations

import pytest

from everbeat.core.addresses import client_address, parse_networks, rate_limit_key
from everbeat.core.errors import InvalidInput

PROXIES = parse_networks(["10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.9", ["1.2.3.4"], "203.0.113.9"),
        ("10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4, 10.9.9.9"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6", "1.2.3.4 , 10.9.9.9"], "1.2.3.4"),
        ("10.0.0.1", ["10.0.0.7"], "10.0.0.7"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4, unknown"], "10.0.0.1"),
        ("fd00::1", ["[2001:db8::7]:443"], "2001:db8::7"),
        ("10.0.0.1", ["1.2.3.4:5678"], "1.2.3.4"),
        ("::ffff:10.0.0.1", ["::ffff:1.2.3.4"], "1.2.3.4"),
        (None, ["1.2.3.4"], "unknown"),
    ],
)
def test_forwarded_addresses_are_used_only_from_trusted_proxies(peer: str | None, forwarded: list[str], expected: str) -> None:
    assert client_address(peer, forwarded, PROXIES) == expected


def test_without_trusted_proxies_the_header_is_ignored() -> None:
    assert client_address("10.0.0.1", ["1.2.3.4"], ()) == "10.0.0.1"


def test_ipv6_addresses_of_one_network_share_a_limit() -> None:
    assert rate_limit_key("2001:db8:1:2::1") == rate_limit_key("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert rate_limit_key("2001:db8:1:3::1") != rate_limit_key("2001:db8:1:2::1")
    assert rate_limit_key("1.2.3.4") == "1.2.3.4"


@pytest.mark.parametrize("text", ["proxy", "10.0.0.1/8", "10.0.0.0/99", ""])
def test_an_invalid_network_is_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="trusted_proxies"):
        parse_networks([text])

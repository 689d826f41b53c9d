from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import pytest

from everbeat.core.webhook_addresses import (
    PUBLIC_ONLY,
    UrlJudge,
    WebhookRules,
    may_connect,
    parse_webhook_allow,
    url_message,
)

LOOPBACK = parse_webhook_allow(["127.0.0.0/8", "::1", "localhost"])

# Every way to write an address that is not public.
PRIVATE_URLS = {
    "loopback": "http://127.0.0.1/",
    "loopback, another address": "http://127.8.9.1/",
    "decimal": "http://2130706433/",
    "octal": "http://0177.0.0.1/",
    "octal, one number": "http://017700000001/",
    "hexadecimal": "http://0x7f000001/",
    "hexadecimal parts": "http://0x7f.0.0.0x1/",
    "two parts": "http://127.1/",
    "three parts": "http://127.0.1/",
    "leading zeros": "http://127.000.000.001/",
    "a decimal public address": "http://134744072/",
    "private 10": "http://10.0.0.1/",
    "private 172.16": "http://172.31.255.255/",
    "private 192.168": "http://192.168.1.1/",
    "unspecified": "http://0.0.0.0/",
    "this network": "http://0.1.2.3/",
    "link-local": "http://169.254.1.1/",
    "cloud metadata": "http://169.254.169.254/latest/meta-data/",
    "container metadata": "http://169.254.170.2/",
    "other cloud's metadata": "http://100.100.100.200/",
    "carrier-grade NAT": "http://100.64.0.1/",
    "multicast": "http://224.0.0.1/",
    "broadcast": "http://255.255.255.255/",
    "reserved": "http://240.0.0.1/",
    "protocol assignments": "http://192.0.0.170/",
    "documentation": "http://192.0.2.1/",
    "benchmarking": "http://198.18.0.1/",
    "6to4 relays": "http://192.88.99.1/",
    "IPv6 loopback": "http://[::1]/",
    "IPv6 loopback in full": "http://[0000:0000:0000:0000:0000:0000:0000:0001]/",
    "IPv6 unspecified": "http://[::]/",
    "IPv6 link-local": "http://[fe80::1]/",
    "IPv6 with a zone": "http://[fe80::1%25eth0]/",
    "IPv6 unique local": "http://[fd00:ec2::254]/",
    "IPv6 site-local": "http://[fec0::1]/",
    "IPv6 multicast": "http://[ff02::1]/",
    "IPv6 documentation": "http://[2001:db8::1]/",
    "IPv6 newer documentation": "http://[3fff::1]/",
    "IPv6 discard": "http://[100::1]/",
    "IPv6 ORCHID": "http://[2001:20::1]/",
    "IPv4-mapped": "http://[::ffff:127.0.0.1]/",
    "IPv4-mapped in hexadecimal": "http://[::ffff:7f00:1]/",
    "IPv4-mapped public": "http://[::ffff:8.8.8.8]/",
    "IPv4-compatible": "http://[::127.0.0.1]/",
    "IPv4-translated": "http://[::ffff:0:127.0.0.1]/",
    "NAT64": "http://[64:ff9b::7f00:1]/",
    "NAT64, local prefix": "http://[64:ff9b:1::a00:1]/",
    "6to4": "http://[2002:7f00:1::]/",
    "6to4 of a private address": "http://[2002:c0a8:101::1]/",
    "Teredo": "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    "the name localhost": "http://localhost/",
    "a name under localhost": "http://x.localhost/",
    "localhost with a dot at the end": "http://localhost./",
    "localhost in capitals": "http://LOCALHOST/",
    "an internal name": "http://metadata.google.internal/",
    "a multicast DNS name": "http://printer.local/",
    "a cluster name": "http://api.default.svc.cluster.local/",
}
INVALID_URLS = {
    "user name": "http://user@example.org/",
    "user name and password": "http://user:password@example.org/",
    "empty user name": "http://@example.org/",
    "a host that looks like a user name": "http://example.org@127.0.0.1/",
    "backslash": "http://example.org\\@127.0.0.1/",
    "line break": "http://example.org/\r\nHost: x",
    "tab": "http://exam\tple.org/",
    "NUL": "http://example.org/\x00",
    "space": "http://example.org/a b",
    "C1 control character": "http://example.org/\x85",
    "file": "file:///etc/passwd",
    "gopher": "gopher://example.org/",
    "no scheme": "//example.org/",
    "no host": "http:///x",
    "wide digits": "http://１２７.0.0.1/",
    "circled letters": "http://ⓛocalhost/",
    "ideographic full stop": "http://127。0。0。1/",
    "soft hyphen": "http://local\u00adhost/",
    "percent-encoded host": "http://%31%32%37.0.0.1/",
    "port out of range": "http://example.org:70000/",
    "port that is no number": "http://example.org:x/",
    "broken IPv6": "http://[::1/",
    "no address in brackets": "http://[example.org]/",
    "too long": f"http://example.org/{'a' * 2048}",
    "an empty label": "http://example..org/",
}


@pytest.mark.parametrize("url", PRIVATE_URLS.values(), ids=PRIVATE_URLS)
def test_an_address_that_is_not_public_is_refused(url: str) -> None:
    assert url_message(url, PUBLIC_ONLY) is not None


@pytest.mark.parametrize("url", INVALID_URLS.values(), ids=INVALID_URLS)
def test_an_invalid_url_is_refused_also_by_clients(url: str) -> None:
    assert url_message(url, PUBLIC_ONLY) is not None
    assert url_message(url) is not None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "https://example.org:8443/a?b=c#d",
        "http://8.8.8.8/",
        "http://[2606:4700:4700::1111]/",
        "https://xn--bcher-kva.example/",
        "https://example.org./",
        "https://a_b.example.org/",
        "https://redis/",
    ],
)
def test_a_public_url_is_accepted(url: str) -> None:
    assert url_message(url, PUBLIC_ONLY) is None


@pytest.mark.parametrize("port", [0, 22, 25, 3306, 5432, 6379, 11211])
def test_ports_of_other_services_are_refused(port: int) -> None:
    for host in ("example.org", "8.8.8.8"):
        message = url_message(f"http://{host}:{port}/", PUBLIC_ONLY)
        assert message is not None
        assert "port" in message


def test_the_operator_can_allow_networks_and_hosts() -> None:
    rules = parse_webhook_allow(["10.0.0.0/8", "fd00::/8", "hooks.internal", "*.svc.cluster.local"])
    for url in (
        "http://10.1.2.3:6379/",
        "http://[fd12::1]/",
        "http://hooks.internal/",
        "http://api.svc.cluster.local:9092/",
    ):
        assert url_message(url, rules) is None, url
    for url in ("http://127.0.0.1/", "http://192.168.0.1/", "http://[fe80::1]/", "http://[::ffff:10.0.0.1]/"):
        assert url_message(url, rules) is not None, url


@pytest.mark.parametrize("text", ["10.0.0.0/33", "http://x", "127.1", "0x7f000001", "a b", ""])
def test_a_wrong_exception_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a network"):
        parse_webhook_allow([text])


def test_an_allowed_prefix_does_not_allow_a_private_address_inside_the_address() -> None:
    rules = WebhookRules((ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16")))
    assert may_connect(ipaddress.ip_address("64:ff9b::808:808"), rules)
    assert not may_connect(ipaddress.ip_address("64:ff9b::7f00:1"), rules)
    assert not may_connect(ipaddress.ip_address("2002:7f00:1::1"), rules)


@pytest.mark.parametrize("text", ["1.1.1.1", "100.63.255.255", "100.128.0.0", "172.32.0.1", "223.255.255.255", "2a00::1"])
def test_public_addresses_next_to_special_networks_may_be_connected_to(text: str) -> None:
    assert may_connect(ipaddress.ip_address(text))


_PATHS = ("", "/", "/a?b=c", "?b", "#f", "/%2f@example.org:22", "/a b", "/\n", "/" + "x" * 3000)


@pytest.mark.parametrize("rules", [PUBLIC_ONLY, LOOPBACK], ids=["public", "loopback"])
@pytest.mark.parametrize(
    "url", [*PRIVATE_URLS.values(), *INVALID_URLS.values(), "https://Example.org.:8443", "http://127.0.0.1"]
)
def test_the_judge_says_what_the_rules_say(url: str, rules: WebhookRules) -> None:
    judge = UrlJudge(rules, max_kept=3)
    for _ in range(2):
        for path in _PATHS:
            judged = judge.judge(url + path)
            assert judged.message == url_message(url + path, rules), path
            if judged.message is None:
                assert judged.host == (urlsplit(url + path).hostname or "").rstrip(".")

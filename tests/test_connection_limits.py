"""The decision about a new connection: accepted, in place of an idle one, for health checks only, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everbeat.connection_limits import ConnectionAdmission, ConnectionTable

FULL, HEALTH_ONLY, REFUSED = ConnectionAdmission


class FakeConnection:
    def __init__(self, idle_seconds: float | None) -> None:
        self.idle_seconds = idle_seconds


class Server:
    """A table of 8 connections, 4 for each address, and 2 reserved ones."""

    def __init__(self, is_exempt: Callable[[str], bool] = lambda _address: False) -> None:
        self.closed: list[FakeConnection] = []
        self.now = 0.0
        close: Callable[[object], None] = self.closed.append  # type: ignore[assignment]
        self.table = ConnectionTable(8, 4, close, is_exempt, max_reserved=2, monotonic=lambda: self.now)

    def open(self, address: str, idle_seconds: float | None = None) -> tuple[ConnectionAdmission, FakeConnection]:
        self.now += 1
        connection = FakeConnection(idle_seconds)
        admission = self.table.admit(address)
        if admission is not REFUSED:
            self.table.add(address, connection, admission)
        return admission, connection


def test_an_address_at_its_limit_replaces_its_own_idle_connection() -> None:
    server = Server()
    idle = [server.open("a", seconds)[1] for seconds in (0.5, None, 7, 0.2)]
    server.open("b", 100)
    assert server.open("a")[0] is FULL
    assert server.closed == [idle[2]]
    assert server.open("a")[0] is FULL
    assert server.closed == [idle[2], idle[0]], "the one that has been idle for longest, even if not for long"


def test_busy_connections_are_never_replaced() -> None:
    server = Server()
    assert [server.open("a")[0] for _ in range(7)] == [FULL] * 4 + [HEALTH_ONLY] * 2 + [REFUSED]
    assert [server.open("b")[0] for _ in range(4)] == [FULL] * 4
    assert [server.open("c")[0] for _ in range(2)] == [REFUSED] * 2
    assert server.closed == []


def test_a_full_server_replaces_an_idle_connection_of_the_greediest_address() -> None:
    server = Server()
    greedy = [server.open("a", 5)[1] for _ in range(4)]
    for address in ("b", "b", "c", "d"):
        server.open(address, 60)
    for number in range(1, 3):
        assert server.open(f"new-{number}")[0] is FULL
        assert server.closed == greedy[:number]


def test_the_next_address_follows_if_the_greediest_is_busy() -> None:
    server = Server()
    for address in "aaaab":
        server.open(address)
    idle = server.open("b", 1)[1]
    for address in "cd":
        server.open(address)
    assert server.open("e")[0] is FULL
    assert server.closed == [idle]
    assert server.open("e")[0] is HEALTH_ONLY


def test_an_exempt_address_has_no_limit_and_is_replaced_last() -> None:
    server = Server(lambda address: address == "proxy")
    proxied = [server.open("proxy", 50) for _ in range(7)]
    assert {admission for admission, _ in proxied} == {FULL}
    other = server.open("a", 2)[1]
    assert server.open("b")[0] is FULL
    assert server.closed == [other]
    assert server.open("c")[0] is FULL
    assert server.closed == [other, proxied[0][1]]


def test_an_idle_reserved_connection_makes_way() -> None:
    server = Server()
    for _ in range(4):
        server.open("a")
    reserved = [server.open("a", seconds)[1] for seconds in (0.1, 1.5)]
    assert server.open("a")[0] is HEALTH_ONLY
    assert server.closed == [reserved[1]]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_closed_connection_is_counted_once(is_replaced: bool) -> None:
    server = Server()
    first = server.open("a", 9)[1]
    for _ in range(3):
        server.open("a")
    if is_replaced:
        server.open("a")
        assert server.closed == [first]
    server.table.discard("a", first)
    server.table.discard("a", first)
    assert server.open("a")[0] is (HEALTH_ONLY if is_replaced else FULL)

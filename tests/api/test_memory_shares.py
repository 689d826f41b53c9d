"""Memory is shared fairly between keys and between addresses."""

from __future__ import annotations

from everbeat.api.memory_shares import MemoryShare, MemoryShares


def held(shares: MemoryShares, size: int, key: str, address: str = "a", interrupted: list[str] | None = None) -> MemoryShare:
    share = shares.share(key, address)
    assert share.grow(size)
    if interrupted is not None:
        share.interrupt = lambda: interrupted.append(key)
    return share


def test_one_key_may_use_all_of_the_memory_but_not_more() -> None:
    shares = MemoryShares(100)
    first = held(shares, 60, "x", interrupted=[])
    second = held(shares, 40, "x", interrupted=[])
    assert not second.grow(1)
    first.release()
    assert second.grow(60)
    second.release()
    assert shares.bytes_held == 0


def test_a_key_with_less_interrupts_the_share_of_the_largest_key_that_has_grown_least_recently() -> None:
    shares, interrupted = MemoryShares(100), list[str]()
    stalled, moving = held(shares, 40, "x", interrupted=interrupted), held(shares, 40, "x", interrupted=interrupted)
    held(shares, 20, "y", interrupted=interrupted)
    assert moving.size == 40
    newcomer = shares.share("z", "a")
    assert newcomer.grow(10)
    assert (interrupted, stalled.size, moving.size, shares.bytes_held) == (["x"], 0, 40, 70)


def test_many_keys_of_one_address_give_memory_to_another_address() -> None:
    shares, interrupted = MemoryShares(100), list[str]()
    for number in range(10):
        held(shares, 10, f"x{number}", interrupted=interrupted)
    assert not shares.share("y", "a").grow(20)
    assert held(shares, 20, "y", "b").size == 20
    assert interrupted == ["x0", "x1"]


def test_a_holder_that_cannot_be_interrupted_keeps_its_memory() -> None:
    shares = MemoryShares(100)
    held(shares, 100, "x")
    assert not shares.share("y", "b").grow(1)
    assert shares.bytes_held == 100


def test_a_smaller_limit_applies_to_what_it_is_given_for() -> None:
    shares = MemoryShares(100)
    share = held(shares, 50, "x")
    assert not share.grow(10, 55)
    assert share.grow(10)

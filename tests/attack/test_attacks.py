"""One caller must not slow the others: attacks on a real server, with what its neighbor notices."""

from __future__ import annotations

import pytest

from tests.attack.registry import Attack, all_attacks
from tests.attack.runner import run_long, run_short
from tests.attack.target import Target

ATTACKS = all_attacks()


async def test_no_attack_stops_the_server(target: Target) -> None:
    """The short form: every attack once, on one server."""
    await run_short(target, [attack for attack in ATTACKS if attack.is_short])


@pytest.mark.attack
@pytest.mark.timeout(300)
@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
async def test_the_neighbor_does_not_notice(long_target: Target, attack: Attack) -> None:
    """The long form."""
    print(f"\n{await run_long(long_target, attack)}")

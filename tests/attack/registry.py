"""The list of attacks.

To add one, write an async function in a file of `attacks/` and decorate it:

    @attack
    async def half_sent_heads(target: Target) -> None:
        '''64 connections that never finish their heads.'''

The function sends the attack once and asserts what the attacker gets. The runner repeats it until the time of the attack is
over, and checks that the neighbor is not affected: see `runner.py`. It must not leave connections open.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from typing import NamedTuple, overload

from tests.attack import attacks
from tests.attack.target import Target

Run = Callable[[Target], Awaitable[None]]


class Attack(NamedTuple):
    """An attack. `is_short`: whether it is also part of the short form, which every run of the tests includes."""

    name: str
    run: Run
    is_short: bool


_found: dict[str, Attack] = {}


@overload
def attack(run: Run, /) -> Run: ...
@overload
def attack(*, is_short: bool = ...) -> Callable[[Run], Run]: ...
def attack(run: Run | None = None, /, *, is_short: bool = True) -> Run | Callable[[Run], Run]:
    def register(run: Run) -> Run:
        name = f"{run.__module__.rpartition('.')[2]}.{getattr(run, '__name__', '')}"
        assert name not in _found, name
        _found[name] = Attack(name, run, is_short)
        return run

    return register if run is None else register(run)


def all_attacks() -> list[Attack]:
    for module in sorted(module.name for module in pkgutil.iter_modules(attacks.__path__)):
        importlib.import_module(f"{attacks.__name__}.{module}")
    return list(_found.values())

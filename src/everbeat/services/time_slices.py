"""Long loops on the event loop: they let other work run each time a slice of time is used up."""

from __future__ import annotations

import asyncio
from time import perf_counter

_SLICE_SECONDS = 0.002


class TimeSlices:
    """The slices of one loop. `pause` costs little as long as the slice is not used up."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = perf_counter()

    async def pause(self) -> None:
        if perf_counter() - self._began >= _SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = perf_counter()

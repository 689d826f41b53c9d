"""Repeats a write of a request while another transaction has locked its rows: for about a second, then the request fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from everbeat.core.errors import StoreLocked
from everbeat.core.lock_retries import REQUEST_DELAYS_SECONDS

T = TypeVar("T")

LOCKED_MESSAGE = "another transaction has locked a row that this request changes; nothing of it was changed, so try again"


async def retry_while_locked(write: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a write, which is repeated after StoreLocked. The last StoreLocked is raised."""
    for delay in REQUEST_DELAYS_SECONDS:
        try:
            return await write()
        except StoreLocked:
            await asyncio.sleep(delay)
    return await write()

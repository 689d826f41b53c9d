"""Requests that stay open, such as long polls and event streams, and end when their key is revoked or expires."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self
from uuid import UUID

from everbeat.core.access import Caller


class KeySession:
    """One request that stays open, used as a context manager. `ended` is done when its key is revoked or expires."""

    __slots__ = ("_sessions", "ended", "key_id")

    def __init__(self, sessions: KeySessions, key_id: UUID | None) -> None:
        self._sessions = sessions
        self.key_id = key_id
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_ended(self) -> bool:
        return self.ended.done() and not self.ended.cancelled()

    def __enter__(self) -> Self:
        self._sessions.add(self)
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._sessions.remove(self)
        self.ended.cancel()


class KeySessions:
    """The open requests of this node, by key. Requests without a key are not ended."""

    def __init__(self) -> None:
        self._open: dict[UUID, set[KeySession]] = {}

    def open(self, caller: Caller) -> KeySession:
        """Use as `with sessions.open(caller) as session: await asyncio.wait({work, session.ended}, return_when=…)`."""
        return KeySession(self, caller.key_id)

    def key_ids(self) -> list[UUID]:
        return list(self._open)

    def end(self, key_ids: Iterable[UUID]) -> None:
        """End the sessions of keys that are no longer valid."""
        for key_id in key_ids:
            for session in self._open.get(key_id, ()):
                if not session.ended.done():
                    session.ended.set_result(None)

    def add(self, session: KeySession) -> None:
        if session.key_id is not None:
            self._open.setdefault(session.key_id, set()).add(session)

    def remove(self, session: KeySession) -> None:
        if session.key_id is None:
            return
        others = self._open.get(session.key_id)
        if others is not None:
            others.discard(session)
            if not others:
                del self._open[session.key_id]

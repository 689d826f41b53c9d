"""Collects the data for the explanation of a check, which core/check_explanations.py evaluates."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from everbeat.core.check_explanations import CheckExplanation, explain_instant, explain_state
from everbeat.core.check_ledger import CheckLedgerEntry
from everbeat.core.checks import PingKind
from everbeat.services.check_ledger import CheckLedgerService
from everbeat.services.checks import CheckService

_RECENT_PINGS = 20
_NEARBY = timedelta(days=2)
_SECOND = timedelta(seconds=1)


class CheckExplainer:
    def __init__(self, checks: CheckService, ledger: CheckLedgerService) -> None:
        self._checks = checks
        self._ledger = ledger

    async def explain(
        self, tenant_id: UUID, name: str, at: datetime | None, *, now: datetime | None = None
    ) -> CheckExplanation:
        """Explain the state of a check now, or the expected ping at an instant; whole seconds mean that second."""
        check, moment, _ = await self._checks.get(tenant_id, name, now=now)
        recent = await self._checks.pings(check, before=None, limit=_RECENT_PINGS)
        last = next((ping for ping in recent if ping.kind is not PingKind.LOG), None)
        if at is None:
            return explain_state(check, last, moment)
        until = at if at.microsecond else at + _SECOND
        entries = await self._ledger.entries(check, moment, from_=at, to=max(until, at + timedelta(microseconds=1)), limit=1)
        if entries:
            return explain_instant(check, at, entries[0], (), last)
        around = await self._ledger.entries(check, moment, from_=at - _NEARBY, to=at + _NEARBY, limit=1000)
        return explain_instant(check, at, None, _nearest(around, at), last)


def _nearest(entries: list[CheckLedgerEntry], at: datetime) -> list[CheckLedgerEntry]:
    before = [entry for entry in entries if entry.scheduled_for < at][-1:]
    after = [entry for entry in entries if entry.scheduled_for >= at][:1]
    return [*before, *after]

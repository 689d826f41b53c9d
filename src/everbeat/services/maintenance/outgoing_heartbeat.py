"""The outgoing heartbeat: tells a service outside, such as Healthchecks, at an interval that the whole cluster is working.

If the heartbeats stop, the service outside raises the alarm: that is the only alarm that works when no node runs. One node at a
time sends them, under the lease of the loop. While the cluster is not well, the heartbeat goes to `/fail`, with the reasons as
text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from everbeat.core.audit_findings import AuditFinding, FindingKind
from everbeat.core.definitions import rfc3339
from everbeat.delivery.ping import PingFailed, ping
from everbeat.services.events import Emit, HeartbeatSent, ignore
from everbeat.services.maintenance.leased_loop import LeasedLoop
from everbeat.store.base import Store
from everbeat.store.values import FindingFilter, LoopLease

_LISTED = 5
# A missing or doubled tick cannot be undone. It is reported for this time, and then only in the findings.
_RECENT_SECONDS = 600.0
_LASTING = (FindingKind.UNOWNED_PARTITIONS, FindingKind.CLOCK_SET_BACK, FindingKind.OVERDUE)
_PASSING = (FindingKind.MISSING, FindingKind.DOUBLED)

Ping = Callable[[str, str | None], Awaitable[None]]


class OutgoingHeartbeat(LeasedLoop):
    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        node_id: UUID,
        url: str,
        *,
        interval_seconds: float,
        audit_interval_seconds: float,
        send: Ping = ping,
        emit: Emit = ignore,
    ) -> None:
        super().__init__(store, node_id, interval_seconds=interval_seconds)
        self._url = url
        # The lease of the auditor, and three runs.
        self._max_audit_age = timedelta(seconds=self.lease_seconds + 3 * audit_interval_seconds)
        self._send = send
        self._emit = emit

    async def work(self, lease: LoopLease, now: datetime | None) -> str:
        problems = await self.problems(lease.now)
        if problems is None:
            return "{}"
        try:
            if problems:
                await self._send(fail_url(self._url), "\n".join(problems))
            else:
                await self._send(self._url, None)
        except PingFailed as error:
            self._emit(HeartbeatSent("error", [str(error), *problems]))
        else:
            self._emit(HeartbeatSent("fail" if problems else "ok", problems))
        return "{}"

    async def problems(self, now: datetime) -> list[str] | None:
        """Return why the cluster is not well, or None if the auditor of a new cluster has not run yet."""
        ran_at = next((one.ran_at for one in await self._store.loop_lease_list() if one.name == "auditor"), None)
        if ran_at is None:
            return None
        problems = []
        if now - ran_at > self._max_audit_age:
            problems.append(f"the auditor has not run since {rfc3339(ran_at)}")
        for kind in (*_LASTING, *_PASSING):
            found = await self._store.finding_list(None, FindingFilter(kind=kind), limit=_LISTED)
            recent = [one for one in found if kind in _LASTING or (now - one.found_at).total_seconds() <= _RECENT_SECONDS]
            problems += [_text(one) for one in recent]
        return problems


def _text(finding: AuditFinding) -> str:
    subject = "" if finding.schedule_id is None else f" of schedule {finding.schedule_id}"
    return f"{finding.kind.value}{subject}: {rfc3339(finding.scheduled_for)}, found at {rfc3339(finding.found_at)}"


def fail_url(url: str) -> str:
    """Return the URL that reports a failure: the path with `/fail`."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/fail"))

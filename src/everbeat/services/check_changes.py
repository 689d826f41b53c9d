"""What the services of checks share: the expectation of a check, and the publication of its transitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from everbeat.core.check_states import CheckStep, Expectation, with_step
from everbeat.core.checks import Check, CheckChange, Ping
from everbeat.core.definitions import rfc3339
from everbeat.core.errors import InvalidInput
from everbeat.core.timeline import TimelineCache
from everbeat.services.event_stream import EventKind, EventStream
from everbeat.services.events import CheckChanged, Emit, PingsReceived, ignore


def expectation_of(check: Check, timelines: TimelineCache) -> Expectation:
    """Return when pings are expected. A rule whose time zone was removed from the tz database expects none."""
    if check.spec.period is not None:
        return Expectation(check.spec, None)
    try:
        return Expectation(check.spec, timelines.get(check.spec.rule, check.id, {}))
    except InvalidInput:
        return Expectation(check.spec, None)


def change_of(check: Check, step: CheckStep, pings: tuple[Ping, ...] = ()) -> CheckChange:
    """Return the change that a step makes to a stored check."""
    return CheckChange(with_step(check, step), check.version, pings, step.ticks, step.transitions)


class CheckPublisher:
    """Turns written changes of checks into metrics, log lines and events."""

    def __init__(self, *, emit: Emit = ignore, event_stream: EventStream | None = None) -> None:
        self._emit = emit
        self._event_stream = event_stream or EventStream()

    def publish(self, changes: Iterable[CheckChange]) -> None:
        kinds: Counter[str] = Counter()
        for change in changes:
            kinds.update(ping.kind.value for ping in change.pings)
            for one in change.transitions:
                check, reason = change.check, None if one.reason is None else one.reason.value
                self._emit(CheckChanged(check.tenant_id, check.spec.name, one.from_state.value, one.to_state.value, reason))
                if self._event_stream.has_subscribers:
                    data = {
                        "check": check.spec.name,
                        "from": one.from_state.value,
                        "to": one.to_state.value,
                        "reason": reason,
                        "at": rfc3339(one.at),
                    }
                    self._event_stream.publish(EventKind.CHECK, check.tenant_id, data)
        if kinds:
            self._emit(PingsReceived(kinds))

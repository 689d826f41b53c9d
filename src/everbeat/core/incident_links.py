"""Where to read more about an incident: paths of the API and of the dashboard."""

from __future__ import annotations

from urllib.parse import quote
from uuid import UUID

from everbeat.core.alerts import AlertKind
from everbeat.core.definitions import rfc3339
from everbeat.core.incidents import Incident

# Their incidents are about ticks, so the explanation is that of a tick. The others are about tasks.
_ABOUT_TICKS = frozenset({AlertKind.MISSED, AlertKind.LATE, AlertKind.DEADLINE, AlertKind.SKIPPED})


def incident_link(id_: UUID) -> str:
    """Return the path of the incident in the API."""
    return f"/v1/incidents/{id_}"


def page_link(id_: UUID) -> str:
    """Return the path of the incident in the dashboard."""
    return f"/incidents/{id_}"


def why_link(incident: Incident) -> str | None:
    """Return the path of the explanation in the API; None if it is about neither a tick, a check nor a task."""
    if incident.subject.startswith("check:"):
        return f"/v1/checks/{quote(incident.subject_name.removeprefix('check '), safe='')}/why"
    if incident.schedule_id is not None and (incident.kind in _ABOUT_TICKS or incident.task_id is None):
        return f"/v1/schedules/{incident.schedule_id}/why?at={quote(rfc3339(incident.occurred_at), safe='')}"
    return None if incident.task_id is None else f"/v1/tasks/{incident.task_id}/why"

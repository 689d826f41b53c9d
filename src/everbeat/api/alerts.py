"""/v1/alerts: alert rules. /v1/incidents: what they found."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import read_as, read_optional_json
from everbeat.api.messages import NO_CONTENT, ApiRequest, Response, json_response
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import Absent, NameText, NoQuery, PageQuery
from everbeat.api.responses import (
    AlertList,
    AlertResponse,
    IncidentList,
    IncidentResponse,
    MaintenanceWindowResponse,
    QuietTimesResponse,
)
from everbeat.api.routing import delete, get, post, put
from everbeat.core.access import Scope
from everbeat.core.alerts import AlertInput, AlertRule, shown_alert
from everbeat.core.definitions import convert, number, optional_rfc3339, rfc3339
from everbeat.core.errors import InvalidInput, NotFound
from everbeat.core.incident_links import incident_link, why_link
from everbeat.core.incidents import Incident, IncidentState
from everbeat.core.names import has_control_characters, is_encodable
from everbeat.core.quiet_times import QuietTimes

MAX_NOTE_CHARACTERS = 1000

_SLACK = {"kind": "slack", "url": "https://hooks.slack.com/services/T000/B000/XXXX"}
_EXAMPLES: dict[str, Any] = {
    "a deadline": {
        "when": {"kind": "deadline", "by": "04:00"},
        "match": {"schedule": "nightly-report"},
        "notify": [_SLACK],
        "remind_seconds": 3600,
    },
    "dead letters": {
        "when": {"kind": "dead"},
        "match": {"label": "team=billing"},
        "notify": [{"kind": "http", "url": "https://example.org/alerts"}],
        "quiet": {"timezone": "Europe/Berlin", "hours": [{"from": "22:00", "to": "07:00"}]},
        "group_seconds": 300,
    },
}


class IncidentQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[IncidentState, msgspec.Meta(description="Incidents in this state only. The default is all.")] | Absent = (
        msgspec.UNSET
    )
    alert: Annotated[NameText, msgspec.Meta(description="Incidents of this alert only.")] | Absent = msgspec.UNSET


class IncidentAcknowledgement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    note: Annotated[str, msgspec.Meta(max_length=MAX_NOTE_CHARACTERS)] | None = None


@get(
    "/v1/alerts",
    Operation(
        id="listAlerts",
        tag="Alerts",
        summary="List alert rules by name",
        responses={200: Success("A page of alert rules.", AlertList)},
        query=PageQuery,
    ),
)
async def list_alerts(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    after_name = paging.name_after(query.cursor)
    found = await request.context.alerts.page(request.tenant_id, after_name=after_name, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.name_cursor(last.name)
    return json_response(AlertList([alert_response(rule) for rule in page], next_cursor))


@get(
    "/v1/alerts/{name}",
    Operation(
        id="getAlert",
        tag="Alerts",
        summary="Read an alert rule, without the secrets of its targets",
        responses={200: Success("The alert rule.", AlertResponse, headers=("ETag",))},
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_alert(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return _response(await request.context.alerts.get(request.tenant_id, request.path_params["name"]))


@put(
    "/v1/alerts/{name}",
    Operation(
        id="putAlert",
        scope=Scope.MANAGE,
        tag="Alerts",
        summary="Create or replace an alert rule",
        responses={
            200: Success("The alert rule.", AlertResponse, headers=("ETag",)),
            201: Success("The new alert rule.", AlertResponse, headers=("ETag", "Location")),
        },
        query=NoQuery,
        body=Body(AlertInput, _EXAMPLES),
        problems=(409,),
    ),
)
async def put_alert(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    given = await read_as(request, AlertInput)
    name = request.path_params["name"]
    rule, is_new = await request.context.alerts.put(request.tenant_id, name, given, by=request.caller)
    return _response(rule, 201 if is_new else 200)


@delete(
    "/v1/alerts/{name}",
    Operation(
        id="deleteAlert",
        scope=Scope.MANAGE,
        tag="Alerts",
        summary="Remove an alert rule; its incidents are resolved, without notifications",
        responses={204: Success("The alert rule was removed.")},
        query=NoQuery,
        problems=(404,),
    ),
)
async def delete_alert(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    await request.context.alerts.delete(request.tenant_id, request.path_params["name"], by=request.caller)
    return NO_CONTENT


@get(
    "/v1/incidents",
    Operation(
        id="listIncidents",
        tag="Alerts",
        summary="List incidents, newest first",
        responses={200: Success("A page of incidents.", IncidentList)},
        query=IncidentQuery,
    ),
)
async def list_incidents(request: ApiRequest) -> Response:
    query = paging.parse_query(request, IncidentQuery)
    states = tuple(IncidentState) if isinstance(query.state, Absent) else (query.state,)
    alert = paging.optional_name("alert", query.alert)
    before = paging.time_id_before(query.cursor)
    found = await request.context.alerts.incidents(
        request.tenant_id, states=states, alert=alert, before=before, limit=query.limit + 1
    )
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.time_id_cursor(last.opened_at, last.id)
    return json_response(IncidentList([incident_response(incident) for incident in page], next_cursor))


@get(
    "/v1/incidents/{id}",
    Operation(
        id="getIncident",
        tag="Alerts",
        summary="Read an incident",
        responses={200: Success("The incident.", IncidentResponse)},
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_incident(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return json_response(incident_response(await request.context.alerts.incident(request.tenant_id, _id(request))))


@post(
    "/v1/incidents/{id}/acknowledge",
    Operation(
        id="acknowledgeIncident",
        scope=Scope.MANAGE,
        tag="Alerts",
        summary="Acknowledge an incident, so that no more reminders are sent for it",
        responses={200: Success("The incident.", IncidentResponse)},
        query=NoQuery,
        body=Body(IncidentAcknowledgement, {"with a note": {"note": "the disk was full"}}, is_required=False),
        problems=(404, 409),
    ),
)
async def acknowledge_incident(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    note = convert(await read_optional_json(request), IncidentAcknowledgement).note
    if note is not None and (has_control_characters(note) or not is_encodable(note)):
        raise InvalidInput.of("note", "must not contain control characters")
    incident = await request.context.alerts.acknowledge(request.tenant_id, _id(request), note=note, by=request.caller)
    return json_response(incident_response(incident))


def _id(request: ApiRequest) -> UUID:
    text = request.path_params["id"]
    found = paging.uuid_of(text)
    if found is None:
        raise NotFound(f"there is no incident {text[:100]}")
    return found


def _response(rule: AlertRule, status: int = 200) -> Response:
    headers = {"ETag": f'"{rule.revision}"'}
    if status == 201:
        headers["Location"] = f"/v1/alerts/{rule.name}"
    return json_response(alert_response(rule), status, headers)


def alert_response(rule: AlertRule) -> AlertResponse:
    given = shown_alert(rule.given)
    return AlertResponse(
        name=rule.name,
        when=given.when,
        match=given.match,
        notify=given.notify,
        quiet=_quiet(given.quiet),
        remind_seconds=None if given.remind_seconds is None else number(given.remind_seconds),
        group_seconds=number(given.group_seconds),
        notify_resolved=given.notify_resolved,
        description=given.description,
        labels=given.labels,
        enabled=given.enabled,
        revision=rule.revision,
        created_at=rfc3339(rule.created_at),
        updated_at=rfc3339(rule.updated_at),
    )


def _quiet(quiet: QuietTimes | None) -> QuietTimesResponse | None:
    if quiet is None:
        return None
    windows = [MaintenanceWindowResponse(rfc3339(one.from_), rfc3339(one.to)) for one in quiet.maintenance]
    return QuietTimesResponse(timezone=quiet.timezone, hours=quiet.hours, maintenance=windows)


def incident_response(incident: Incident) -> IncidentResponse:
    return IncidentResponse(
        id=str(incident.id),
        alert=incident.alert,
        kind=incident.kind,
        subject=incident.subject_name,
        schedule_id=None if incident.schedule_id is None else str(incident.schedule_id),
        task_id=None if incident.task_id is None else str(incident.task_id),
        summary=incident.summary,
        details=msgspec.json.decode(incident.details),
        state=incident.state,
        count=incident.count,
        occurred_at=rfc3339(incident.occurred_at),
        opened_at=rfc3339(incident.opened_at),
        last_seen_at=rfc3339(incident.last_seen_at),
        resolved_at=optional_rfc3339(incident.resolved_at),
        resolution=incident.resolution,
        acknowledged_at=optional_rfc3339(incident.acknowledged_at),
        acknowledged_by=incident.acknowledged_by,
        note=incident.note,
        notified_at=optional_rfc3339(incident.announced_at),
        reminders=incident.reminders,
        link=incident_link(incident.id),
        why=why_link(incident),
    )


ROUTES = [list_alerts, get_alert, put_alert, delete_alert, list_incidents, get_incident, acknowledge_incident]

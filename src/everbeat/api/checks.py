"""/v1/checks: jobs that run elsewhere and report by pings."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import decode_as, read_as, read_body
from everbeat.api.check_responses import CheckExplanationResponse, CheckList, CheckResponse
from everbeat.api.messages import NO_CONTENT, ApiRequest, Response, json_response
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import Absent, NameText, NoQuery, PageQuery
from everbeat.api.routing import delete, get, post, put
from everbeat.api.why import WhyQuery, fact_responses
from everbeat.core.access import Scope
from everbeat.core.checks import Check, CheckInput, CheckState
from everbeat.core.definitions import number, optional_rfc3339, rfc3339, trigger_fields
from everbeat.core.describe import describe
from everbeat.services.checks import FoundCheck

_EXAMPLE = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "grace_seconds": 900, "labels": {"team": "infra"}}
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")


class ChecksQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[CheckState, msgspec.Meta(description="Only checks in this stored state.")] | Absent = msgspec.UNSET
    name_prefix: Annotated[NameText, msgspec.Meta(description="Only names that begin with this.")] | Absent = msgspec.UNSET


class RotateInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`keep_old`: whether the old ping URL stays valid for 24 hours."""

    keep_old: bool = True


@get(
    "/v1/checks",
    Operation(
        id="listChecks",
        tag="Checks",
        summary="List checks by name",
        responses={200: Success("A page of checks.", CheckList)},
        query=ChecksQuery,
    ),
)
async def list_checks(request: ApiRequest) -> Response:
    query = paging.parse_query(request, ChecksQuery)
    checks = request.context.checks
    found = await checks.page(
        request.tenant_id,
        state=None if isinstance(query.state, Absent) else query.state,
        prefix=paging.optional_name("name_prefix", query.name_prefix),
        after_name=paging.name_after(query.cursor),
        limit=query.limit + 1,
    )
    page, last = paging.split_page(found, query.limit)
    moment = await checks.clock()
    next_cursor = None if last is None else paging.name_cursor(last.spec.name)
    return json_response(CheckList([check_response(request, check, moment) for check in page], next_cursor))


@get(
    "/v1/checks/{name}",
    Operation(
        id="getCheck",
        tag="Checks",
        summary="Read a check; its ping URL is shown to keys with the scope manage",
        responses={200: Success("The check.", CheckResponse, headers=("ETag",))},
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_check(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return _response(request, await request.context.checks.get(request.tenant_id, request.path_params["name"]))


@put(
    "/v1/checks/{name}",
    Operation(
        id="putCheck",
        scope=Scope.MANAGE,
        tag="Checks",
        summary="Create a check with a new ping URL, or replace its definition",
        responses={
            200: Success("The check. Its ping URL is unchanged.", CheckResponse, headers=("ETag",)),
            201: Success("The new check.", CheckResponse, headers=("ETag", "Location")),
        },
        query=NoQuery,
        body=Body(CheckInput, {"backup": _EXAMPLE}),
        problems=(409,),
    ),
)
async def put_check(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    given = await read_as(request, CheckInput)
    name = request.path_params["name"]
    return _response(request, await request.context.checks.put(request.tenant_id, name, given, by=request.caller))


@delete(
    "/v1/checks/{name}",
    Operation(
        id="deleteCheck",
        scope=Scope.MANAGE,
        tag="Checks",
        summary="Remove a check; its ping URL stops working",
        responses={204: Success("The check was removed.")},
        query=NoQuery,
        problems=(404,),
    ),
)
async def delete_check(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    await request.context.checks.delete(request.tenant_id, request.path_params["name"], by=request.caller)
    return NO_CONTENT


def _action(verb: str, summary: str, description: str) -> tuple[str, Operation]:
    return f"/v1/checks/{{name}}/{verb}", Operation(
        id=f"{verb}Check",
        scope=Scope.MANAGE,
        tag="Checks",
        summary=summary,
        description=description,
        responses={200: Success("The check.", CheckResponse, headers=("ETag",))},
        query=NoQuery,
        problems=(404, 409),
    )


@post(*_action("pause", "Pause a check", "No ping is expected while it is paused. Pings are recorded, and do not resume it."))
async def pause_check(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    name = request.path_params["name"]
    return _response(request, await request.context.checks.pause(request.tenant_id, name, by=request.caller))


@post(*_action("resume", "Resume a paused check", "The next ping is expected from now on, unless the check never had one."))
async def resume_check(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    name = request.path_params["name"]
    return _response(request, await request.context.checks.resume(request.tenant_id, name, by=request.caller))


@post(
    "/v1/checks/{name}/rotate",
    Operation(
        id="rotateCheck",
        scope=Scope.MANAGE,
        tag="Checks",
        summary="Give a check a new ping URL; the old one stays valid for 24 hours, unless `keep_old` is false",
        responses={200: Success("The check with its new ping URL.", CheckResponse, headers=("ETag",))},
        query=NoQuery,
        body=Body(RotateInput, {"leaked": {"keep_old": False}}, is_required=False),
        problems=(404, 409),
    ),
)
async def rotate_check(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request, is_required=False)
    given = await decode_as(request, raw or b"{}", RotateInput)
    name = request.path_params["name"]
    found = await request.context.checks.rotate(request.tenant_id, name, keeps_old=given.keep_old, by=request.caller)
    return _response(request, found)


@get(
    "/v1/checks/{name}/why",
    Operation(
        id="whyCheck",
        tag="Checks",
        summary="Explain the state of a check, or what became of the ping that was expected at a given time",
        responses={200: Success("The verdict, an explanation, and the facts that support it.", CheckExplanationResponse)},
        query=WhyQuery,
        problems=(404,),
    ),
)
async def why_check(request: ApiRequest) -> Response:
    query = paging.parse_query(request, WhyQuery)
    at = paging.optional_time("at", query.at)
    found = await request.context.check_explainer.explain(request.tenant_id, request.path_params["name"], at)
    return json_response(CheckExplanationResponse(found.verdict, found.explanation, fact_responses(found.facts)))


def ping_url(request: ApiRequest, token: str) -> str:
    """The ping URL: at the public address of the server if it is configured, otherwise at the address of this request."""
    base = request.context.public_url
    if base is None:
        host = request.header(b"host") or ""
        base = f"{request.scope['scheme']}://{host}" if _HOST.fullmatch(host) else ""
    return f"{base}/ping/{token}"


def check_response(request: ApiRequest, check: Check, now: datetime) -> CheckResponse:
    spec, position = check.spec, check.position
    seconds = position.last_duration_seconds
    trigger: dict[str, Any] = trigger_fields(spec.rule)
    is_old_valid = check.old_token_until is not None and now < check.old_token_until
    return CheckResponse(
        id=str(check.id),
        name=spec.name,
        description=spec.description,
        **trigger,
        timezone=spec.rule.timezone,
        grace_seconds=number(spec.grace_seconds),
        timeout_seconds=None if spec.timeout_seconds is None else number(spec.timeout_seconds),
        labels=spec.labels,
        status=check.status_at(now),
        state_since=rfc3339(position.state_since),
        reason=position.reason,
        expected_at=None if position.state is CheckState.PAUSED else optional_rfc3339(position.expected_at),
        due_at=optional_rfc3339(position.due_at),
        last_ping_at=optional_rfc3339(position.last_ping_at),
        last_duration_ms=None if seconds is None else number(round(seconds * 1000, 3)),
        ping_count=position.ping_count,
        ping_url=ping_url(request, check.token) if Scope.MANAGE in request.caller.scopes else None,
        old_ping_url_until=optional_rfc3339(check.old_token_until) if is_old_valid else None,
        trigger_text=describe(spec.rule, check.id),
        revision=check.revision,
        created_at=rfc3339(check.created_at),
        updated_at=rfc3339(check.updated_at),
    )


def _response(request: ApiRequest, found: FoundCheck) -> Response:
    headers = {"ETag": f'"{found.check.revision}"'}
    if found.is_new:
        headers["Location"] = f"/v1/checks/{found.check.spec.name}"
    return json_response(check_response(request, found.check, found.moment), 201 if found.is_new else 200, headers)


ROUTES = [
    list_checks,
    get_check,
    put_check,
    delete_check,
    pause_check,
    resume_check,
    rotate_check,
    why_check,
]

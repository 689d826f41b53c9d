"""/v1/checks/{name}/pings, /ticks and /transitions: what has happened to a check."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everbeat.api import paging
from everbeat.api.check_responses import (
    CheckTickList,
    CheckTickResponse,
    CheckTransitionList,
    CheckTransitionResponse,
    PingList,
    PingResponse,
)
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import PageCollector, PageQuery, WindowQuery
from everbeat.api.routing import get
from everbeat.core.check_ledger import CheckLedgerEntry
from everbeat.core.checks import CheckTransition, Ping
from everbeat.core.definitions import number, optional_rfc3339, rfc3339
from everbeat.core.responses import optional_id
from everbeat.services.checks import FoundCheck


@get(
    "/v1/checks/{name}/pings",
    Operation(
        id="listPings",
        tag="Checks",
        summary="List the pings of a check, newest first; the newest 1,000 are kept",
        responses={200: Success("A page of pings.", PingList)},
        query=PageQuery,
        problems=(404,),
    ),
)
async def list_pings(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    before = paging.number_after(query.cursor)
    check = (await _found(request)).check

    async def fetch(last: Ping | None, count: int) -> Sequence[Ping]:
        start = before if last is None else last.number
        return await request.context.checks.pings(check, before=start, limit=count)

    items, last = await PageCollector(fetch, lambda ping: len(ping.body or b""), _ping).collect(query.limit)
    return json_response(PingList(items, None if last is None else paging.number_cursor(last.number)))


@get(
    "/v1/checks/{name}/ticks",
    Operation(
        id="listCheckTicks",
        tag="Checks",
        summary="Read the ledger of a check: expected pings, and what became of them",
        responses={200: Success("A page of the ledger, oldest first.", CheckTickList)},
        query=WindowQuery,
        problems=(404,),
    ),
)
async def list_check_ticks(request: ApiRequest) -> Response:
    query = paging.parse_query(request, WindowQuery)
    from_, to = paging.optional_time("from", query.from_), paging.optional_time("to", query.to)
    after = paging.time_after(query.cursor)
    check, moment, _ = await _found(request)
    ledger = request.context.check_ledger
    found = await ledger.entries(check, moment, from_=from_, to=to, after=after, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.time_cursor(last.until or last.scheduled_for)
    return json_response(CheckTickList([_tick(entry) for entry in page], next_cursor))


@get(
    "/v1/checks/{name}/transitions",
    Operation(
        id="listCheckTransitions",
        tag="Checks",
        summary="List the changes of the state of a check, newest first",
        responses={200: Success("A page of transitions.", CheckTransitionList)},
        query=PageQuery,
        problems=(404,),
    ),
)
async def list_check_transitions(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    check = (await _found(request)).check
    before = paging.number_after(query.cursor)
    found = await request.context.checks.transitions(check, before=before, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.number_cursor(last[0])
    return json_response(CheckTransitionList([_transition(*one) for one in page], next_cursor))


async def _found(request: ApiRequest) -> FoundCheck:
    return await request.context.checks.get(request.tenant_id, request.path_params["name"])


def _ping(ping: Ping) -> PingResponse:
    seconds = ping.duration_seconds
    return PingResponse(
        number=ping.number,
        at=rfc3339(ping.at),
        kind=ping.kind,
        rid=optional_id(ping.rid),
        exit_status=ping.exit_status,
        duration_ms=None if seconds is None else number(round(seconds * 1000, 3)),
        method=ping.method,
        address=ping.address,
        user_agent=ping.user_agent,
        body=None if ping.body is None else ping.body.decode("utf-8", "replace"),
        body_bytes=ping.body_bytes,
    )


def _tick(entry: CheckLedgerEntry) -> CheckTickResponse:
    is_range = entry.until is not None
    return CheckTickResponse(
        scheduled_for=rfc3339(entry.scheduled_for),
        outcome=entry.outcome,
        reason=entry.reason,
        task_id=None,
        fired_at=optional_rfc3339(entry.pinged_at),
        lag_ms=entry.lag_ms,
        ping=entry.ping_number,
        until=rfc3339(entry.until) if entry.until is not None else msgspec.UNSET,
        count=entry.count if is_range else msgspec.UNSET,
    )


def _transition(number_: int, one: CheckTransition) -> CheckTransitionResponse:
    return CheckTransitionResponse(
        number=number_,
        at=rfc3339(one.at),
        from_=one.from_state,
        to=one.to_state,
        reason=one.reason,
        scheduled_for=optional_rfc3339(one.scheduled_for),
        ping=one.ping_number,
    )


ROUTES = [list_pings, list_check_ticks, list_check_transitions]

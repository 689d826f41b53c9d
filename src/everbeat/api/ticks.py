"""/v1/schedules/{ref}/ticks: the ledger of a schedule."""

from __future__ import annotations

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import WindowQuery
from everbeat.api.responses import TickList
from everbeat.api.routing import get
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.core.responses import TickResponse, optional_id
from everbeat.services.ledger import LedgerEntry


@get(
    "/v1/schedules/{ref}/ticks",
    Operation(
        id="listTicks",
        tag="Schedules",
        summary="Read the ledger: fired, skipped, upcoming and missing ticks, with the reasons",
        responses={200: Success("A page of the ledger, oldest first.", TickList)},
        query=WindowQuery,
        problems=(404,),
    ),
)
async def list_ticks(request: ApiRequest) -> Response:
    query = paging.parse_query(request, WindowQuery)
    from_, to = paging.optional_time("from", query.from_), paging.optional_time("to", query.to)
    after = paging.time_after(query.cursor)
    context = request.context
    schedule = await context.schedules.get(request.tenant_id, request.path_params["ref"])
    found = await context.ledger.entries(schedule, from_=from_, to=to, after=after, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.time_cursor(last.until or last.scheduled_for)
    return json_response(TickList([_item(entry) for entry in page], next_cursor))


def _item(entry: LedgerEntry) -> TickResponse:
    is_range = entry.until is not None
    return TickResponse(
        scheduled_for=rfc3339(entry.scheduled_for),
        outcome=entry.outcome,
        reason=entry.reason,
        task_id=optional_id(entry.task_id),
        fired_at=optional_rfc3339(entry.fired_at),
        lag_ms=entry.lag_ms,
        until=rfc3339(entry.until) if entry.until is not None else msgspec.UNSET,
        count=entry.count if is_range else msgspec.UNSET,
    )


ROUTES = [list_ticks]

"""/v1/schedules/{ref}/ticks: the ledger of a schedule."""

from __future__ import annotations

from typing import Any

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import WindowQuery
from everbeat.api.responses import TickList
from everbeat.api.routing import get
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.services.ledger import LedgerEntry


@get(
    "/v1/schedules/{ref}/ticks",
    Operation(
        id="listTicks",
        tag="Schedules",
        summary="Read the ledger: what fired, what was skipped and why, what is to come, what is missing",
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
    return json_response({"items": [_line(line) for line in page], "next_cursor": next_cursor})


def _line(line: LedgerEntry) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "scheduled_for": rfc3339(line.scheduled_for),
        "outcome": line.outcome,
        "reason": line.reason,
        "task_id": None if line.task_id is None else str(line.task_id),
        "fired_at": optional_rfc3339(line.fired_at),
        "lag_ms": line.lag_ms,
    }
    if line.until is not None:
        answer.update(until=rfc3339(line.until), count=line.count)
    return answer


ROUTES = [list_ticks]

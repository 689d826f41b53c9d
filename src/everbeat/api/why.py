"""/v1/schedules/{ref}/why: why a schedule did run, did not run, or will run at a given time."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent, TimeText
from everbeat.api.responses import ExplanationResponse, FactResponse
from everbeat.api.routing import get


class WhyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: (
        Annotated[
            TimeText,
            msgspec.Meta(description="The time in question, by default now; whole seconds mean that second."),
        ]
        | Absent
    ) = msgspec.UNSET


@get(
    "/v1/schedules/{ref}/why",
    Operation(
        id="why",
        tag="Schedules",
        summary="Explain why a schedule did run, did not run, or will run at a given time",
        responses={200: Success("The verdict, an explanation, and the facts that support it.", ExplanationResponse)},
        query=WhyQuery,
        problems=(404,),
    ),
)
async def why(request: ApiRequest) -> Response:
    query = paging.parse_query(request, WhyQuery)
    at = paging.optional_time("at", query.at)
    found = await request.context.explainer.explain(request.tenant_id, request.path_params["ref"], at)
    facts = [FactResponse(one.fact, one.value) for one in found.facts]
    return json_response(ExplanationResponse(found.verdict, found.explanation, facts))


ROUTES = [why]

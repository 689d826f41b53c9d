"""/v1/schedules/{ref}/why: why a schedule did, did not or will run at a time."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent, TimeText
from everbeat.api.responses import ExplanationResponse
from everbeat.api.routing import get


class WhyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: (
        Annotated[TimeText, msgspec.Meta(description="The time in question, now by default; whole seconds mean that second.")]
        | Absent
    ) = msgspec.UNSET


@get(
    "/v1/schedules/{ref}/why",
    Operation(
        id="why",
        tag="Schedules",
        summary="Why it did, did not, or will run at a time",
        responses={200: Success("The verdict, a sentence, and the facts behind it.", ExplanationResponse)},
        query=WhyQuery,
        problems=(404,),
    ),
)
async def why(request: ApiRequest) -> Response:
    query = paging.parse_query(request, WhyQuery)
    at = paging.optional_time("at", query.at)
    found = await request.context.explainer.explain(request.tenant_id, request.path_params["ref"], at)
    facts = [one._asdict() for one in found.facts]
    return json_response({"verdict": found.verdict.value, "explanation": found.explanation, "facts": facts})


ROUTES = [why]

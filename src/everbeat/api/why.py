"""/v1/schedules/{ref}/why: why a schedule did, did not or will run at a time."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response, get

from everbeat.api import paging
from everbeat.api.context import ApiRequest, context_of, tenant_of
from everbeat.api.openapi import Operation, Success, documented
from everbeat.api.paging import Absent, TimeText
from everbeat.api.responses import ExplanationResponse, json_response


class WhyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: (
        Annotated[TimeText, msgspec.Meta(description="The time in question, now by default; whole seconds mean that second.")]
        | Absent
    ) = msgspec.UNSET


@get(
    "/v1/schedules/{ref:str}/why",
    opt=documented(
        Operation(
            id="why",
            tag="Schedules",
            summary="Why it did, did not, or will run at a time",
            responses={200: Success("The verdict, a sentence, and the facts behind it.", ExplanationResponse)},
            query=WhyQuery,
            problems=(404,),
        )
    ),
)
async def why(request: ApiRequest) -> Response[bytes]:
    query = paging.parse_query(request, WhyQuery)
    at = paging.optional_time("at", query.at)
    found = await context_of(request).explainer.explain(tenant_of(request), request.path_params["ref"], at)
    facts = [one._asdict() for one in found.facts]
    return json_response({"verdict": found.verdict.value, "explanation": found.explanation, "facts": facts})


HANDLERS = [why]

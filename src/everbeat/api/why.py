"""/v1/schedules/{ref}/why: why a schedule did, did not or will run at a time. /v1/tasks/{id}/why: what a task waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent, NoQuery, TimeText
from everbeat.api.responses import ExplanationResponse, FactResponse, TaskExplanationResponse
from everbeat.api.routing import get
from everbeat.api.tasks import task_id_of
from everbeat.core.task_explanations import Fact


class WhyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: (
        Annotated[
            TimeText,
            msgspec.Meta(
                description="The time in question, by default the latest expected tick; whole seconds mean that second."
            ),
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
    return json_response(ExplanationResponse(found.verdict, found.explanation, fact_responses(found.facts)))


@get(
    "/v1/tasks/{id}/why",
    Operation(
        id="whyTask",
        tag="Tasks",
        summary="Explain what a task waits for, or how it ended",
        responses={200: Success("The state, an explanation, and the facts that support it.", TaskExplanationResponse)},
        query=NoQuery,
        problems=(404,),
    ),
)
async def why_task(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    found = await request.context.explainer.explain_task(request.tenant_id, task_id_of(request))
    return json_response(TaskExplanationResponse(found.state, found.explanation, fact_responses(found.facts)))


def fact_responses(facts: Sequence[Fact]) -> list[FactResponse]:
    return [FactResponse(one.fact, one.value, msgspec.UNSET if one.link is None else one.link) for one in facts]


ROUTES = [why, why_task]

"""/v1/slo: how the service level objectives of the cluster are met, and what is left of their error budgets."""

from __future__ import annotations

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import ServiceLevelResponse, ServiceLevelsResponse
from everbeat.api.routing import get
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.core.service_levels import BUDGET_WINDOW, Level


@get(
    "/v1/slo",
    Operation(
        id="slo",
        tag="Operations",
        summary="Read the service level objectives, what is left of their error budgets, and how fast they are used up",
        responses={200: Success("The service levels of the cluster.", ServiceLevelsResponse)},
        query=NoQuery,
    ),
)
async def slo(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    report = await request.context.service_levels.report()
    return json_response(
        ServiceLevelsResponse(
            now=rfc3339(report.now),
            since=optional_rfc3339(report.since),
            window_days=BUDGET_WINDOW.days,
            objectives=[level_response(level) for level in report.levels],
        )
    )


def level_response(level: Level) -> ServiceLevelResponse:
    objective = level.objective
    return ServiceLevelResponse(
        name=objective.sli,
        target=objective.target,
        threshold_seconds=objective.threshold_seconds,
        status=level.status,
        good=level.good,
        total=level.total,
        ratio=level.ratio,
        budget_left=level.budget_left,
        burn_rates=level.burn_rates,
    )


ROUTES = [slo]

"""Service levels: how the objectives of the cluster are met, and what is left of their error budgets."""

from __future__ import annotations

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.service_levels import BURN_ALERTS, WINDOWS, Objective, Sli
from everbeat.web.pages.declarations import READ
from everbeat.web.rendering import page


@get("/slo", READ)
async def show_service_levels(request: ApiRequest) -> Response:
    report = await request.context.service_levels.report()
    return await page(
        request,
        "service_levels.html",
        report=report,
        now=report.now,
        windows=list(WINDOWS),
        meanings={level.objective.sli: _meaning(level.objective) for level in report.levels},
        limits={long: rate for long, _, rate in BURN_ALERTS},
    )


def _meaning(objective: Objective) -> str:
    seconds = f"{objective.threshold_seconds:g} s" if objective.threshold_seconds is not None else ""
    return {
        Sli.FIRE: f"of the ticks fire within {seconds} after they are due",
        Sli.PICKUP: f"of the ready tasks are claimed within {seconds}",
        Sli.AVAILABILITY: "of the minutes every partition has an owner, and the database answers",
        Sli.SUCCESS: "of the tasks that end complete",
    }[objective.sli]


ROUTES = [show_service_levels]

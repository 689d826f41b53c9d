"""The pages of the dashboard, one file per section. Each reads through services and renders a template."""

from __future__ import annotations

from everbeat.api.routing import Route
from everbeat.web.pages import (
    alerts,
    audit,
    bulk,
    calendars,
    check_form,
    checks,
    cluster,
    dead_letters,
    incidents,
    overview,
    queues,
    schedule,
    schedule_actions,
    schedule_calendar,
    schedule_form,
    schedules,
    search,
    service_levels,
    tasks,
    tenants,
    timeline,
)

_MODULES = (
    alerts,
    audit,
    bulk,
    calendars,
    check_form,
    checks,
    cluster,
    dead_letters,
    incidents,
    overview,
    queues,
    schedule,
    schedule_actions,
    schedule_calendar,
    schedule_form,
    schedules,
    search,
    service_levels,
    tasks,
    tenants,
    timeline,
)
PAGE_ROUTES: tuple[Route, ...] = tuple(route for module in _MODULES for route in module.ROUTES)

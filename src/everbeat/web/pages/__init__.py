"""The pages of the dashboard, one file per section. Each reads through services and renders a template."""

from __future__ import annotations

from everbeat.api.routing import Route
from everbeat.web.pages import overview, schedule, schedules, search

PAGE_ROUTES: tuple[Route, ...] = (*overview.ROUTES, *schedules.ROUTES, *schedule.ROUTES, *search.ROUTES)

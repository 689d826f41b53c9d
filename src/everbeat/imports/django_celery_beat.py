"""Reads the tables of django-celery-beat through its models, with the settings of the Django project."""

from __future__ import annotations

import json
import os
from typing import Any

from everbeat.imports.celery_beat import SOLAR, BeatEntry

PACKAGE = "django_celery_beat"
ONE_OFF = "it is a one-off task on a repeating schedule; create a schedule with the trigger at"


def django_entries() -> list[BeatEntry]:
    """Return the periodic tasks of a Django project. Empty without a project, or if it does not use django-celery-beat."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE"):
        return []
    import django
    from django.apps import apps

    if not apps.ready:
        django.setup()
    if not apps.is_installed(PACKAGE):
        return []
    model = apps.get_model(PACKAGE, "PeriodicTask")
    rows = model.objects.select_related("interval", "crontab", "solar", "clocked").order_by("name")
    return [_entry(row) for row in rows]


def _entry(row: Any) -> BeatEntry:
    source = f"django-celery-beat {row.name!r}"
    options = {name: getattr(row, name) for name in ("queue", "exchange", "routing_key", "priority") if getattr(row, name)}
    fields: dict[str, Any] = {"enabled": row.enabled}
    if row.description:
        fields["description"] = f"{source}: {row.description}"[:1000]
    if row.expire_seconds is not None:
        options["expires"] = row.expire_seconds
    problem = ONE_OFF if row.one_off and row.clocked_id is None else None
    if row.solar_id is not None:
        problem = f"{row.solar}: {SOLAR}"
    decoded: dict[str, Any] = {}
    for name in ("args", "kwargs", "headers"):
        try:
            decoded[name] = json.loads(getattr(row, name) or "null")
        except ValueError:
            problem = f"the column {name} is not JSON"
    if decoded.get("headers"):
        options["headers"] = decoded["headers"]
    return BeatEntry(
        source=source,
        name=row.name,
        task=row.task,
        schedule=None if problem else row.schedule,
        args=decoded.get("args") or [],
        kwargs=decoded.get("kwargs") or {},
        options=options,
        fields=fields,
        starts_at=row.start_time,
        ends_at=row.expires,
        problem=problem,
    )

"""The form that creates or changes a check."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote
from zoneinfo import available_timezones

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.checks import Check, CheckInput
from everbeat.core.definitions import convert, number, trigger_fields
from everbeat.core.errors import EverbeatError, FieldError, InvalidInput
from everbeat.web.forms import read_form
from everbeat.web.pages.declarations import MANAGE
from everbeat.web.rendering import page, redirect
from everbeat.web.schedule_fields import PRESETS

_TRIGGERS = (("every_seconds", "After the last ping"), ("cron", "At the times of a cron expression"))
_NUMBERS = ("every_seconds", "grace_seconds", "timeout_seconds")


@get("/new-check", MANAGE)
async def new_check(request: ApiRequest) -> Response:
    fields = {"trigger": "cron", "cron": "0 2 * * *", "every_seconds": "3600", "timezone": "UTC", "grace_seconds": "3600"}
    return await _form_page(request, fields)


@post("/new-check", MANAGE)
async def create_check(request: ApiRequest) -> Response:
    form = await read_form(request)
    name = form.text("name")
    try:
        await _check_free(request, name)
        found = await request.context.checks.put(request.tenant_id, name, _input(form), by=request.caller)
    except EverbeatError as error:
        return await _form_page(request, form, error=error)
    return redirect(f"/checks/{quote(found.check.spec.name)}", "The check was created. Let the job call its ping URL.")


@get("/checks/{name}/edit", MANAGE)
async def edit_check(request: ApiRequest) -> Response:
    check, _, _ = await request.context.checks.get(request.tenant_id, request.path_params["name"])
    return await _form_page(request, _fields(check), check)


@post("/checks/{name}/edit", MANAGE)
async def change_check(request: ApiRequest) -> Response:
    form = await read_form(request)
    check, _, _ = await request.context.checks.get(request.tenant_id, request.path_params["name"])
    try:
        found = await request.context.checks.put(request.tenant_id, check.spec.name, _input(form), by=request.caller)
    except EverbeatError as error:
        return await _form_page(request, form, check, error=error)
    return redirect(f"/checks/{quote(check.spec.name)}", f"The check was saved as revision {found.check.revision}.")


async def _check_free(request: ApiRequest, name: str) -> None:
    """The form creates, and must not replace a check that has the same name."""
    _, found = await request.context.store.check_find(request.tenant_id, [name])
    if found:
        raise InvalidInput.of("name", "is taken by another check")


async def _form_page(
    request: ApiRequest, fields: Mapping[str, str], check: Check | None = None, error: EverbeatError | None = None
) -> Response:
    errors = error.errors if isinstance(error, InvalidInput) else ()
    return await page(
        request,
        "check_form.html",
        200 if error is None else 422,
        fields=fields,
        check=check,
        error=error,
        errors={one.field: one.message for one in errors},
        triggers=_TRIGGERS,
        presets=PRESETS,
        zones=_zones(),
    )


def _fields(check: Check) -> dict[str, str]:
    spec = check.spec
    trigger = {name: str(value) for name, value in trigger_fields(spec.rule).items()}
    return {
        "trigger": next(iter(trigger)),
        **trigger,
        "timezone": spec.rule.timezone,
        "grace_seconds": str(number(spec.grace_seconds)),
        "timeout_seconds": "" if spec.timeout_seconds is None else str(number(spec.timeout_seconds)),
        "description": spec.description,
        "labels": "\n".join(f"{key}={value}" for key, value in spec.labels.items()),
    }


def _input(fields: Mapping[str, str]) -> CheckInput:
    errors: list[FieldError] = []
    trigger = fields.get("trigger", "")
    given: dict[str, Any] = {"description": fields.get("description", "").strip()}
    given["timezone"] = fields.get("timezone", "").strip() or "UTC"
    for name in _NUMBERS:
        text = fields.get(name, "").strip()
        if not text or (name == "every_seconds" and trigger != name):
            continue
        try:
            given[name] = float(text)
        except ValueError:
            errors.append(FieldError(name, "must be a number"))
    if trigger == "cron":
        given["cron"] = fields.get("cron", "").strip()
    lines = [line.strip() for line in fields.get("labels", "").splitlines() if line.strip()]
    if any("=" not in line for line in lines):
        errors.append(FieldError("labels", "must be one label=value in each line"))
    given["labels"] = dict(line.partition("=")[::2] for line in lines)
    if errors:
        raise InvalidInput(*errors)
    return convert(given, CheckInput)


@cache
def _zones() -> list[str]:
    return sorted(zone for zone in available_timezones() if "/" in zone or zone == "UTC")


ROUTES = [new_check, create_check, edit_check, change_check]

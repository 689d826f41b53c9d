"""Alert rules: the list, and a form that creates, changes and deletes one."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from everbeat.api import paging
from everbeat.api.alerts import alert_response
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.alerts import MAX_ALERTS, AlertRule
from everbeat.core.errors import EverbeatError, InvalidInput, NotFound
from everbeat.web.alert_fields import KIND_LABELS, PARAMETERS, alert_of_form, fields_of_alert
from everbeat.web.forms import read_form
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect

_NEW = "new"


@get("/alerts", READ)
async def list_alerts(request: ApiRequest) -> Response:
    query = query_of(request)
    after = paging.name_after(query["cursor"]) if "cursor" in query else None
    rules = await request.context.alerts.page(request.tenant_id, after_name=after, limit=MAX_ALERTS)
    return await page(request, "alerts.html", rules=[alert_response(rule) for rule in rules])


@get("/alerts/{name}", READ)
async def show_alert(request: ApiRequest) -> Response:
    name = request.path_params["name"]
    try:
        rule = await request.context.alerts.get(request.tenant_id, name)
    except NotFound:
        if name != _NEW:
            raise
        return await _form(request, None, query_of(request))
    return await _form(request, rule, fields_of_alert(rule))


@post("/alerts/{name}", MANAGE)
async def put_alert(request: ApiRequest) -> Response:
    form = await read_form(request)
    path_name = request.path_params["name"]
    is_new = form.is_set("name") or path_name == _NEW
    try:
        given = alert_of_form(form)
        if not is_new:  # the form has no field for labels
            existing_rule = await request.context.alerts.get(request.tenant_id, path_name)
            given = msgspec.structs.replace(given, labels=existing_rule.given.labels)
        rule, _ = await request.context.alerts.put(
            request.tenant_id, form.text("name") or path_name, given, must_be_new=is_new, by=request.caller
        )
    except InvalidInput as error:
        existing = None if is_new else await request.context.alerts.get(request.tenant_id, path_name)
        return await _form(request, existing, form, error=error, status=422)
    link = f"/alerts/{quote(rule.name)}"
    return redirect(link, "The alert was created." if is_new else "The alert was saved.")


@post("/alerts/{name}/delete", MANAGE)
async def delete_alert(request: ApiRequest) -> Response:
    await read_form(request)
    name = request.path_params["name"]
    await request.context.alerts.delete(request.tenant_id, name, by=request.caller)
    return redirect("/alerts", f"The alert {name} was deleted, and its incidents are resolved.")


async def _form(
    request: ApiRequest,
    rule: AlertRule | None,
    fields: Mapping[str, str],
    error: EverbeatError | None = None,
    status: int = 200,
) -> Response:
    return await page(
        request,
        "alert.html",
        status,
        rule=rule,
        fields=fields,
        error=error,
        kind_labels=KIND_LABELS,
        parameters=PARAMETERS,
    )


ROUTES = [list_alerts, show_alert, put_alert, delete_alert]

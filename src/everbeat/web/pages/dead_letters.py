"""Dead letters: grouped by error, inspected one by one, replayed or purged one by one or all that match."""

from __future__ import annotations

from urllib.parse import urlencode

from everbeat.api import paging
from everbeat.api.filters import schedule_id_of
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.errors import Conflict, InvalidInput, NotFound
from everbeat.core.responses import dead_letter_response
from everbeat.services.dead_letters import MAX_GROUPED
from everbeat.store.values import DeadFilter
from everbeat.web.confirmations import check_confirmed
from everbeat.web.forms import Form, read_form
from everbeat.web.inputs import id_of, optional_moment, optional_name
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect

_PAGE_SIZE = 50
_FILTERS = ("queue", "type", "schedule", "from", "to")


@get("/dead-letters", READ)
async def list_dead_letters(request: ApiRequest) -> Response:
    query = query_of(request)
    filters = {name: query[name] for name in _FILTERS if name in query}
    filter_ = await _filter(request, filters)
    context = request.context
    before = paging.time_id_before(query["cursor"]) if "cursor" in query else None
    groups = await context.dead_letters.groups(request.tenant_id, filter_)
    group = next((one for one in groups if one.id == query.get("group")), None)
    if "group" in query:
        filter_ = filter_._replace(task_ids=() if group is None else tuple(one.task_id for one in group.members))
    found = await context.dead_letters.page(request.tenant_id, filter_, before=before, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    return await page(
        request,
        "dead_letters.html",
        groups=groups,
        group=group,
        count=sum(len(one.members) for one in ([group] if group is not None else groups)),
        waiting=sum(one.waiting for one in ([group] if group is not None else groups)),
        max_grouped=MAX_GROUPED,
        letters=[dead_letter_response(one) for one in shown],
        filters=filters,
        filter_query=urlencode(filters),
        now=await context.store.clock(),
        next_cursor=None if last is None else paging.time_id_cursor(last.died_at, last.task_id),
    )


@get("/dead-letters/{id}", READ)
async def show_dead_letter(request: ApiRequest) -> Response:
    letter = await request.context.dead_letters.get(request.tenant_id, id_of(request, "id", "dead letter"))
    now = await request.context.store.clock()
    return await page(request, "dead_letter.html", letter=letter, shown=dead_letter_response(letter), now=now)


@post("/dead-letters/{id}/replay", MANAGE)
async def replay_one(request: ApiRequest) -> Response:
    await read_form(request)
    id_ = id_of(request, "id", "dead letter")
    task = await request.context.dead_letters.replay(request.tenant_id, id_, by=request.caller)
    return redirect(f"/tasks/{task.id}", "This new task runs the work again.")


@post("/dead-letters/replay", MANAGE)
async def replay_all(request: ApiRequest) -> Response:
    form = await read_form(request)
    filter_, shown = await _selected(request, form)
    rate = _rate(form.text("rate_per_second"))
    service = request.context.dead_letters
    done = await service.replay_all(request.tenant_id, filter_, rate_per_second=rate, by=request.caller)
    more = " More are left, because of a limit. Replay again." if done.has_more else ""
    return redirect(shown, f"{done.count:,} dead letters were replayed as new tasks.{more}")


@post("/dead-letters/purge", MANAGE)
async def purge_all(request: ApiRequest) -> Response:
    form = await read_form(request)
    filter_, _ = await _selected(request, form)
    count = await request.context.dead_letters.purge(request.tenant_id, filter_, by=request.caller)
    return redirect("/dead-letters", f"{count:,} dead letters were purged, with their payloads and errors.")


async def _selected(request: ApiRequest, form: Form) -> tuple[DeadFilter, str]:
    """Return what the form acts on: one group of errors, or all that match its filter."""
    filter_ = await _filter(request, form)
    link = urlencode({name: form.text(name) for name in _FILTERS if form.is_set(name)})
    check_confirmed(form)
    if not form.is_set("group"):
        return filter_, f"/dead-letters?{link}"
    groups = await request.context.dead_letters.groups(request.tenant_id, filter_)
    for group in groups:
        if group.id == form.text("group"):
            if len(group.members) != int(form.text("expect_count") or "0"):
                raise Conflict("The group has changed. Open it again and look at the number.")
            return filter_._replace(task_ids=tuple(one.task_id for one in group.members)), f"/dead-letters?{link}"
    raise NotFound("there is no longer a dead letter with this error")


async def _filter(request: ApiRequest, values: Form | dict[str, str]) -> DeadFilter:
    return DeadFilter(
        queue=optional_name(values, "queue"),
        type=optional_name(values, "type"),
        schedule_id=await schedule_id_of(request, values.get("schedule") or None),
        from_at=optional_moment(values, "from"),
        to_at=optional_moment(values, "to"),
    )


def _rate(text: str) -> float | None:
    if not text:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.001 <= rate <= 100_000:
        raise InvalidInput.of("rate_per_second", "must be a number from 0.001 to 100,000")
    return rate


ROUTES = [list_dead_letters, show_dead_letter, replay_one, replay_all, purge_all]

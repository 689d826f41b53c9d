"""The list of tasks with its filters, and the page of a task: attempts, log, progress, and its actions."""

from __future__ import annotations

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.access import Scope
from everbeat.core.responses import attempt_response, task_response
from everbeat.core.tasks import LIVE_STATES, TaskState
from everbeat.web.forms import read_form
from everbeat.web.inputs import TASK_FILTERS, id_of, task_filter
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect

_PAGE_SIZE = 50
_LOG_LINES = 500
_MAX_LOG_LINES_READ = 20_000


@get("/tasks", READ)
async def list_tasks(request: ApiRequest) -> Response:
    query = query_of(request)
    filter_ = await task_filter(request, query)
    before = paging.id_after(query["cursor"]) if "cursor" in query else None
    context = request.context
    found = await context.tasks.page(request.tenant_id, filter_, before=before, limit=_PAGE_SIZE)
    return await page(
        request,
        "tasks.html",
        tasks=found.tasks,
        states=list(TaskState),
        filters={name: query[name] for name in TASK_FILTERS if name in query},
        now=await context.store.clock(),
        next_cursor=None if found.next_before is None else paging.id_cursor(found.next_before),
    )


@get("/tasks/{id}", READ)
async def show_task(request: ApiRequest) -> Response:
    context, id_ = request.context, id_of(request, "id", "task")
    task = await context.tasks.get(request.tenant_id, id_)
    attempts = await context.tasks.attempts(request.tenant_id, id_)
    lines, is_cut = await _log_tail(request)
    return await page(
        request,
        "task.html",
        task=task,
        shown=task_response(task),
        attempts=[attempt_response(one) for one in attempts],
        lines=lines,
        is_cut=is_cut,
        is_live=task.state in LIVE_STATES,
        found=await context.explainer.explain_task(request.tenant_id, id_),
        now=await context.store.clock(),
    )


async def _log_tail(request: ApiRequest) -> tuple[list[object], bool]:
    """Return the last lines of the log, and whether there are more before them. A longer log is read up to a limit."""
    id_ = id_of(request, "id", "task")
    lines: list[object] = []
    after, count = None, 0
    while count < _MAX_LOG_LINES_READ:
        found = await request.context.tasks.log(request.tenant_id, id_, after=after, limit=_LOG_LINES)
        count += len(found)
        lines = [*lines, *found][-_LOG_LINES:]
        if len(found) < _LOG_LINES:
            break
        after = found[-1].id
    return lines, count > len(lines)


@post("/tasks/{id}/cancel", MANAGE)
async def cancel(request: ApiRequest) -> Response:
    await read_form(request)
    id_ = id_of(request, "id", "task")
    task = await request.context.tasks.cancel(request.tenant_id, id_, by=request.caller)
    ended = "The task was cancelled." if task.state is TaskState.CANCELLED else "Its worker was asked to cancel the task."
    return redirect(f"/tasks/{id_}", ended)


@post("/tasks/{id}/retry", MANAGE)
async def retry(request: ApiRequest) -> Response:
    await read_form(request)
    id_ = id_of(request, "id", "task")
    task = await request.context.tasks.retry(request.tenant_id, id_, by=request.caller)
    shown = task.id if Scope.READ in request.caller.scopes else id_
    return redirect(f"/tasks/{shown}", "This new task runs the work again.")


@post("/tasks/{id}/run-now", MANAGE)
async def run_now(request: ApiRequest) -> Response:
    await read_form(request)
    id_ = id_of(request, "id", "task")
    now = await request.context.store.clock()
    await request.context.tasks.reschedule(request.tenant_id, id_, now, by=request.caller)
    return redirect(f"/tasks/{id_}", "The task may run now.")


ROUTES = [list_tasks, show_task, cancel, retry, run_now]

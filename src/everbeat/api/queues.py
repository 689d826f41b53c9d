"""/v1/queues and /v1/workers: the queues with their tasks and workers, and the workers with what they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent, NameText, PageQuery
from everbeat.api.responses import QueueList, QueuePauseResponse, QueueResponse, WorkerList, WorkerResponse
from everbeat.api.routing import get
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.core.pauses import Pause
from everbeat.services.workers import QueueView, WorkerView


class WorkersQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: Annotated[NameText, msgspec.Meta(description="Only workers that ask for this queue.")] | Absent = msgspec.UNSET


@get(
    "/v1/queues",
    Operation(
        id="listQueues",
        tag="Queues and workers",
        summary="List the queues with unfinished tasks and those that workers have asked for, in order of name",
        responses={200: Success("A page of queues.", QueueList)},
        query=PageQuery,
    ),
)
async def list_queues(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    after = paging.name_after(query.cursor)
    pauses = await request.context.pauses.active(request.tenant_id)
    views = await request.context.workers.queues(
        request.tenant_id, [pause.queue for pause in pauses if pause.queue is not None]
    )
    found = [view for view in views if after is None or view.queue > after]
    page, last = paging.split_page(found[: query.limit + 1], query.limit)
    next_cursor = None if last is None else paging.name_cursor(last.queue)
    return json_response(
        QueueList([_queue(view, _pause_of(pauses, request.tenant_id, view.queue)) for view in page], next_cursor)
    )


@get(
    "/v1/workers",
    Operation(
        id="listWorkers",
        tag="Queues and workers",
        summary="List the workers of the last 7 days, with the fleets of the operator, the last seen first",
        responses={200: Success("A page of workers.", WorkerList)},
        query=WorkersQuery,
    ),
)
async def list_workers(request: ApiRequest) -> Response:
    query = paging.parse_query(request, WorkersQuery)
    queue = paging.optional_name("queue", query.queue)
    before = paging.time_id_before(query.cursor)
    found = await request.context.workers.page(request.tenant_id, queue=queue, before=before, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.time_id_cursor(last.info.last_seen_at, last.info.id)
    return json_response(WorkerList([_worker(view) for view in page], next_cursor))


def _pause_of(pauses: Sequence[Pause], tenant_id: UUID, queue: str) -> QueuePauseResponse | None:
    """Return the pause of the queue itself, or else the one that covers it."""
    found = [pause for pause in pauses if pause.covers(tenant_id, queue)]
    if not found:
        return None
    pause = max(found, key=lambda one: one.queue is not None)
    return QueuePauseResponse(
        by=pause.paused_by,
        note=pause.note,
        since=rfc3339(pause.since_at),
        until=optional_rfc3339(pause.until_at),
        scope=pause.scope,
    )


def _queue(view: QueueView, paused: QueuePauseResponse | None) -> QueueResponse:
    return QueueResponse(
        queue=view.queue,
        ready=view.ready,
        scheduled=view.scheduled,
        held=view.held,
        running=view.running,
        oldest_ready_seconds=view.oldest_ready_seconds,
        workers=view.workers,
        last_worker=view.last_worker,
        last_worker_seen_at=optional_rfc3339(view.last_worker_seen_at),
        paused=paused,
    )


def _worker(view: WorkerView) -> WorkerResponse:
    info = view.info
    return WorkerResponse(
        worker=info.worker,
        queues=list(info.queues),
        types=None if info.types is None else list(info.types),
        running=view.running,
        concurrency=info.concurrency,
        version=info.version,
        node=info.node,
        all_tenants=info.tenant_id is None,
        started_at=rfc3339(info.started_at),
        last_seen_at=rfc3339(info.last_seen_at),
        state=view.state,
    )


ROUTES = [list_queues, list_workers]

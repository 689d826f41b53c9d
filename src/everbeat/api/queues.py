"""/v1/queues and /v1/workers: the queues with their tasks and workers, and the workers with what they ask for."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent, NameText, PageQuery
from everbeat.api.responses import QueueList, QueueResponse, WorkerList, WorkerResponse
from everbeat.api.routing import get
from everbeat.core.definitions import optional_rfc3339, rfc3339
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
    found = [view for view in await request.context.workers.queues(request.tenant_id) if after is None or view.queue > after]
    page, last = paging.split_page(found[: query.limit + 1], query.limit)
    next_cursor = None if last is None else paging.name_cursor(last.queue)
    return json_response(QueueList([_queue(view) for view in page], next_cursor))


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


def _queue(view: QueueView) -> QueueResponse:
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
        paused=None,
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

"""/v1/worker: claim, heartbeat, complete, fail and release, the requests of pull workers.

A long poll whose client disconnects must not keep tasks: it ends, and tasks that were claimed for it are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import RESULT, Items, read_as
from everbeat.api.messages import ApiRequest, Receive, Response, json_response, wait_disconnected
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import ClaimedTaskResponse, ClaimedTasksResponse, LeaseStatusesResponse, LeaseStatusResponse
from everbeat.api.routing import post
from everbeat.core.access import Caller, Scope
from everbeat.core.definitions import rfc3339
from everbeat.core.errors import Unauthenticated
from everbeat.core.protocol import (
    MAX_LEASES_PER_REPORT,
    Lease,
    LeaseClaimRequest,
    LeaseCompleteRequest,
    LeaseCompletion,
    LeaseFailRequest,
    LeaseFailure,
    LeaseHeartbeat,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResult,
    LeaseReleaseRequest,
    LeaseResult,
    LeaseResultsResponse,
)
from everbeat.core.tasks import ClaimedTask
from everbeat.services.leases import LeaseService
from everbeat.services.sessions import KeySession

_encode = msgspec.json.Encoder().encode

_LEASE = {"id": "01a1e231-932d-71cb-8dab-e37075a3e37c", "fence": 1}
_WORKER = {"worker": "host-1:4711"}


async def _claim_until_disconnected(
    service: LeaseService, caller: Caller, claim: LeaseClaimRequest, receive: Receive, session: KeySession
) -> list[ClaimedTask]:
    """Claim in the task of the request, which is cancelled when the client disconnects or the key ends.

    The claim is not a task of its own: the worker would get its tasks some iterations of the event loop later.
    """
    request = asyncio.current_task()
    assert request is not None

    def interrupt(_ended: asyncio.Future[None]) -> None:
        request.cancel()

    disconnected = asyncio.create_task(wait_disconnected(receive))
    ends: tuple[asyncio.Future[None], ...] = (disconnected, session.ended)
    for end in ends:
        end.add_done_callback(interrupt)
    try:
        return await service.claim(caller.lease_tenant_id, claim, queues=caller.queues)
    except asyncio.CancelledError:  # the service has released tasks that were claimed in the meantime
        is_interrupted = disconnected.done() or session.has_ended
        if not is_interrupted or request.uncancel() > 0:
            raise
        if not disconnected.done():
            raise Unauthenticated("The API key of this claim was revoked or has expired.") from None
        return []
    finally:
        for end in ends:
            end.remove_done_callback(interrupt)
        disconnected.cancel()


def claimed_body(tasks: Sequence[ClaimedTask]) -> bytes:
    # The tasks of a claim share few different times, and formatting a time is the most expensive part of this function.
    formatted: dict[datetime | None, str | None] = {None: None}
    responses = []
    for task in tasks:
        for at in (task.lease_until, task.scheduled_for):
            if at not in formatted and at is not None:
                formatted[at] = rfc3339(at)
        responses.append(
            ClaimedTaskResponse(
                task.id,
                task.type,
                task.queue,
                task.payload,
                task.attempt,
                task.max_attempts,
                task.fence,
                formatted[task.lease_until] or "",
                task.lease_seconds,
                formatted[task.scheduled_for],
                task.schedule,
                task.schedule_id,
                task.origin,
                task.timeout_seconds,
                task.traceparent,
                task.tenant_id,
            )
        )
    return _encode(ClaimedTasksResponse(responses))


def _claimed_response(tasks: Sequence[ClaimedTask]) -> Response:
    response = json_response(claimed_body(tasks))
    response.is_refusable = False
    return response


def _heartbeat_body(results: Sequence[LeaseHeartbeatResult]) -> bytes:
    formatted: dict[datetime | None, str | None] = {None: None}
    for one in results:
        if one.lease_until is not None and one.lease_until not in formatted:
            formatted[one.lease_until] = rfc3339(one.lease_until)
    return _encode(
        LeaseStatusesResponse([LeaseStatusResponse(one.id, one.status, formatted[one.lease_until]) for one in results])
    )


def _results_response(results: list[LeaseResult]) -> Response:
    return json_response(LeaseResultsResponse(results))


def _operation(name: str, summary: str, success: Success, body: Any, **example: Any) -> Operation:
    return Operation(
        id=name,
        scope=Scope.WORK,
        tag="Workers",
        summary=summary,
        responses={200: success},
        query=NoQuery,
        body=Body(body, {"one": {**_WORKER, **example}}),
        problems=(409,),
    )


_RESULTS = Success("The result of each item, in the order of the request.", LeaseResultsResponse)


@post(
    "/v1/worker/claim",
    _operation(
        "claimTasks",
        "Claim ready tasks under leases, the most urgent first; waits up to wait_seconds for the first",
        Success("The claimed tasks; an empty list if there were none in time.", ClaimedTasksResponse),
        LeaseClaimRequest,
        queues=["reports"],
        max=10,
    ),
)
async def claim_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    claim = await read_as(request, LeaseClaimRequest)
    service, caller = request.context.leases, request.caller
    if claim.wait_seconds > 0:
        with request.open_poll(len(claim.queues) + len(claim.types or ())), request.open_session() as session:
            tasks = await _claim_until_disconnected(service, caller, claim, request.receive, session)
            return _claimed_response(tasks)
    return _claimed_response(await service.claim(caller.lease_tenant_id, claim, queues=caller.queues))


@post(
    "/v1/worker/heartbeat",
    _operation(
        "heartbeat",
        "Renew leases, and report progress and log lines; returns which leases are lost or cancelled",
        Success("The status of each lease, in the order of the request.", LeaseStatusesResponse),
        LeaseHeartbeatRequest,
        leases=[{**_LEASE, "progress": {"fraction": 0.4, "message": "fetching"}, "log": "page 4 of 10"}],
    ),
)
async def heartbeat_leases(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    caller = request.caller
    heartbeat = await read_as(request, LeaseHeartbeatRequest, Items("leases", LeaseHeartbeat, max_items=MAX_LEASES_PER_REPORT))
    return json_response(
        _heartbeat_body(await request.context.leases.heartbeat(caller.lease_tenant_id, heartbeat, queues=caller.queues))
    )


@post(
    "/v1/worker/complete",
    _operation(
        "completeTasks",
        "Complete tasks with their results",
        _RESULTS,
        LeaseCompleteRequest,
        results=[{**_LEASE, "result": {"rows": 12}}],
    ),
)
async def complete_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    caller = request.caller
    completion = await read_as(request, LeaseCompleteRequest, Items("results", LeaseCompletion, RESULT, MAX_LEASES_PER_REPORT))
    return _results_response(await request.context.leases.complete(caller.lease_tenant_id, completion, queues=caller.queues))


@post(
    "/v1/worker/fail",
    _operation(
        "failTasks",
        "Report failed attempts; each task is retried later or ends",
        _RESULTS,
        LeaseFailRequest,
        failures=[{**_LEASE, "error": {"message": "timed out", "kind": "TimeoutError"}}],
    ),
)
async def fail_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    caller = request.caller
    failures = await read_as(request, LeaseFailRequest, Items("failures", LeaseFailure, max_items=MAX_LEASES_PER_REPORT))
    return _results_response(await request.context.leases.fail(caller.lease_tenant_id, failures, queues=caller.queues))


@post(
    "/v1/worker/release",
    _operation(
        "releaseTasks",
        "Release tasks that were not started; they are ready immediately, and the attempts do not count",
        _RESULTS,
        LeaseReleaseRequest,
        leases=[_LEASE],
    ),
)
async def release_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    caller = request.caller
    leases = await read_as(request, LeaseReleaseRequest, Items("leases", Lease, max_items=MAX_LEASES_PER_REPORT))
    return _results_response(await request.context.leases.release(caller.lease_tenant_id, leases, queues=caller.queues))


ROUTES = [claim_tasks, heartbeat_leases, complete_tasks, fail_tasks, release_tasks]

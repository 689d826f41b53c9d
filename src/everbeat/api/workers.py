"""/v1/worker: claim, heartbeat, complete, fail and release, as pull workers ask for them.

A long poll whose client goes away must not swallow tasks: the claim waits for work and for the end of the connection at once,
and what was claimed for nobody is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from litestar import Response, post
from litestar.types import Receive

from everbeat.api import paging
from everbeat.api.bodies import Items, read_as
from everbeat.api.context import ApiRequest, RequestView, caller_of, context_of, session_of
from everbeat.api.hot import Answer, response_of
from everbeat.api.openapi import Body, Operation, Success, documented
from everbeat.api.paging import NoQuery
from everbeat.api.responses import ClaimedTaskResponse, ClaimedTasksResponse, LeaseStatusesResponse, LeaseStatusResponse
from everbeat.core.access import Caller, Scope
from everbeat.core.definitions import rfc3339
from everbeat.core.errors import Unauthenticated
from everbeat.core.protocol import (
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


async def claim(request: RequestView) -> Answer:
    paging.parse_query(request, NoQuery)
    wanted = await read_as(request, LeaseClaimRequest)
    work, caller = context_of(request).leases, caller_of(request)
    if wanted.wait_seconds > 0:
        with session_of(request) as session:
            return Answer(200, claimed_body(await _claim_unless_gone(work, caller, wanted, request.receive, session)))
    return Answer(200, claimed_body(await work.claim(caller.lease_tenant_id, wanted, queues=caller.queues)))


async def heartbeat(request: RequestView) -> Answer:
    paging.parse_query(request, NoQuery)
    caller = caller_of(request)
    beat = await read_as(request, LeaseHeartbeatRequest, Items("leases", LeaseHeartbeat))
    return Answer(
        200, _beats_body(await context_of(request).leases.heartbeat(caller.lease_tenant_id, beat, queues=caller.queues))
    )


async def complete(request: RequestView) -> Answer:
    paging.parse_query(request, NoQuery)
    caller = caller_of(request)
    completion = await read_as(request, LeaseCompleteRequest, Items("results", LeaseCompletion))
    return _settled(await context_of(request).leases.complete(caller.lease_tenant_id, completion, queues=caller.queues))


async def fail(request: RequestView) -> Answer:
    paging.parse_query(request, NoQuery)
    caller = caller_of(request)
    failures = await read_as(request, LeaseFailRequest, Items("failures", LeaseFailure))
    return _settled(await context_of(request).leases.fail(caller.lease_tenant_id, failures, queues=caller.queues))


async def release(request: RequestView) -> Answer:
    paging.parse_query(request, NoQuery)
    caller = caller_of(request)
    leases = await read_as(request, LeaseReleaseRequest, Items("leases", Lease))
    return _settled(await context_of(request).leases.release(caller.lease_tenant_id, leases, queues=caller.queues))


HOT = {
    "/v1/worker/claim": claim,
    "/v1/worker/heartbeat": heartbeat,
    "/v1/worker/complete": complete,
    "/v1/worker/fail": fail,
    "/v1/worker/release": release,
}


async def _claim_unless_gone(
    work: LeaseService, caller: Caller, wanted: LeaseClaimRequest, receive: Receive, session: KeySession
) -> list[ClaimedTask]:
    asking = asyncio.create_task(work.claim(caller.lease_tenant_id, wanted, queues=caller.queues))
    leaving = asyncio.create_task(_left(receive))
    try:
        ends: set[asyncio.Future[Any]] = {asking, leaving, session.ended}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if asking.done() and not leaving.done():
            return asking.result()
        if session.has_ended and not leaving.done():
            raise Unauthenticated("The API key of this claim was revoked, or has expired.")
        if asking.done() and (tasks := asking.result()):
            leases = [Lease(id=task.id, fence=task.fence) for task in tasks]
            await work.release(caller.lease_tenant_id, LeaseReleaseRequest(worker=wanted.worker, leases=leases))
        return []
    finally:
        leaving.cancel()
        if asking.cancel():  # what it was given in this very moment goes back
            with contextlib.suppress(asyncio.CancelledError):
                await asking


async def _left(receive: Receive) -> None:
    """Until the client goes away. What else the server has to say is at most the end of a body that is read already."""
    for _ in range(2):
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            return
    await asyncio.get_running_loop().create_future()


def claimed_body(tasks: Sequence[ClaimedTask]) -> bytes:
    # The tasks of a claim share few instants, and writing one costs more than all else here.
    written: dict[datetime | None, str | None] = {None: None}
    answers = []
    for task in tasks:
        for at in (task.lease_until, task.scheduled_for):
            if at not in written and at is not None:
                written[at] = rfc3339(at)
        answers.append(
            ClaimedTaskResponse(
                task.id,
                task.type,
                task.queue,
                task.payload,
                task.attempt,
                task.max_attempts,
                task.fence,
                written[task.lease_until] or "",
                task.lease_seconds,
                written[task.scheduled_for],
                task.schedule,
                task.schedule_id,
                task.origin,
                task.timeout_seconds,
                task.traceparent,
                task.tenant_id,
            )
        )
    return _encode(ClaimedTasksResponse(answers))


def _beats_body(beats: Sequence[LeaseHeartbeatResult]) -> bytes:
    written: dict[datetime | None, str | None] = {None: None}
    for beat in beats:
        if beat.lease_until is not None and beat.lease_until not in written:
            written[beat.lease_until] = rfc3339(beat.lease_until)
    return _encode(
        LeaseStatusesResponse([LeaseStatusResponse(beat.id, beat.status, written[beat.lease_until]) for beat in beats])
    )


def _settled(results: list[LeaseResult]) -> Answer:
    return Answer(200, _encode(LeaseResultsResponse(results)))


def _operation(name: str, summary: str, answer: Success, body: Any, **example: Any) -> dict[str, Any]:
    return documented(
        Operation(
            id=name,
            scope=Scope.WORK,
            tag="Workers",
            summary=summary,
            responses={200: answer},
            query=NoQuery,
            body=Body(body, {"one": {**_WORKER, **example}}),
            problems=(409,),
        )
    )


_BECAME = Success("What became of each, in the order given.", LeaseResultsResponse)


@post(
    "/v1/worker/claim",
    status_code=200,
    opt=_operation(
        "claimTasks",
        "Take ready tasks under leases, the most urgent first; waits up to wait_seconds for the first",
        Success("The tasks; none if there are none in time.", ClaimedTasksResponse),
        LeaseClaimRequest,
        queues=["reports"],
        max=10,
    ),
)
async def claim_tasks(request: ApiRequest) -> Response[bytes]:
    return response_of(await claim(request))


@post(
    "/v1/worker/heartbeat",
    status_code=200,
    opt=_operation(
        "heartbeat",
        "Renew leases, with progress and log lines; learn what is lost and what to cancel",
        Success("What became of each lease, in the order given.", LeaseStatusesResponse),
        LeaseHeartbeatRequest,
        leases=[{**_LEASE, "progress": {"fraction": 0.4, "message": "fetching"}, "log": "page 4 of 10"}],
    ),
)
async def heartbeat_leases(request: ApiRequest) -> Response[bytes]:
    return response_of(await heartbeat(request))


@post(
    "/v1/worker/complete",
    status_code=200,
    opt=_operation(
        "completeTasks",
        "Finish tasks with their results",
        _BECAME,
        LeaseCompleteRequest,
        results=[{**_LEASE, "result": {"rows": 12}}],
    ),
)
async def complete_tasks(request: ApiRequest) -> Response[bytes]:
    return response_of(await complete(request))


@post(
    "/v1/worker/fail",
    status_code=200,
    opt=_operation(
        "failTasks",
        "Report failed attempts: each is tried again later, or is dead",
        _BECAME,
        LeaseFailRequest,
        failures=[{**_LEASE, "error": {"message": "timed out", "kind": "TimeoutError"}}],
    ),
)
async def fail_tasks(request: ApiRequest) -> Response[bytes]:
    return response_of(await fail(request))


@post(
    "/v1/worker/release",
    status_code=200,
    opt=_operation(
        "releaseTasks",
        "Give unstarted work back at once, without counting an attempt",
        _BECAME,
        LeaseReleaseRequest,
        leases=[_LEASE],
    ),
)
async def release_tasks(request: ApiRequest) -> Response[bytes]:
    return response_of(await release(request))


HANDLERS = [claim_tasks, heartbeat_leases, complete_tasks, fail_tasks, release_tasks]

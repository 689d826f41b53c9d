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

from everbeat.api import paging
from everbeat.api.bodies import Items, read_as
from everbeat.api.messages import ApiRequest, Receive, Response, json_response, wait_disconnected
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import ClaimedTaskResponse, ClaimedTasksResponse, LeaseStatusesResponse, LeaseStatusResponse
from everbeat.api.routing import post
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


async def _claim_unless_gone(
    work: LeaseService, caller: Caller, wanted: LeaseClaimRequest, receive: Receive, session: KeySession
) -> list[ClaimedTask]:
    asking = asyncio.create_task(work.claim(caller.lease_tenant_id, wanted, queues=caller.queues))
    leaving = asyncio.create_task(wait_disconnected(receive))
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


def _settled(results: list[LeaseResult]) -> Response:
    return json_response(LeaseResultsResponse(results))


def _operation(name: str, summary: str, answer: Success, body: Any, **example: Any) -> Operation:
    return Operation(
        id=name,
        scope=Scope.WORK,
        tag="Workers",
        summary=summary,
        responses={200: answer},
        query=NoQuery,
        body=Body(body, {"one": {**_WORKER, **example}}),
        problems=(409,),
    )


_BECAME = Success("What became of each, in the order given.", LeaseResultsResponse)


@post(
    "/v1/worker/claim",
    _operation(
        "claimTasks",
        "Take ready tasks under leases, the most urgent first; waits up to wait_seconds for the first",
        Success("The tasks; none if there are none in time.", ClaimedTasksResponse),
        LeaseClaimRequest,
        queues=["reports"],
        max=10,
    ),
)
async def claim_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    wanted = await read_as(request, LeaseClaimRequest)
    work, caller = request.context.leases, request.caller
    if wanted.wait_seconds > 0:
        with request.open_session() as session:
            return json_response(claimed_body(await _claim_unless_gone(work, caller, wanted, request.receive, session)))
    return json_response(claimed_body(await work.claim(caller.lease_tenant_id, wanted, queues=caller.queues)))


@post(
    "/v1/worker/heartbeat",
    _operation(
        "heartbeat",
        "Renew leases, with progress and log lines; learn what is lost and what to cancel",
        Success("What became of each lease, in the order given.", LeaseStatusesResponse),
        LeaseHeartbeatRequest,
        leases=[{**_LEASE, "progress": {"fraction": 0.4, "message": "fetching"}, "log": "page 4 of 10"}],
    ),
)
async def heartbeat_leases(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    caller = request.caller
    beat = await read_as(request, LeaseHeartbeatRequest, Items("leases", LeaseHeartbeat))
    return json_response(
        _beats_body(await request.context.leases.heartbeat(caller.lease_tenant_id, beat, queues=caller.queues))
    )


@post(
    "/v1/worker/complete",
    _operation(
        "completeTasks",
        "Finish tasks with their results",
        _BECAME,
        LeaseCompleteRequest,
        results=[{**_LEASE, "result": {"rows": 12}}],
    ),
)
async def complete_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    caller = request.caller
    completion = await read_as(request, LeaseCompleteRequest, Items("results", LeaseCompletion))
    return _settled(await request.context.leases.complete(caller.lease_tenant_id, completion, queues=caller.queues))


@post(
    "/v1/worker/fail",
    _operation(
        "failTasks",
        "Report failed attempts: each is tried again later, or is dead",
        _BECAME,
        LeaseFailRequest,
        failures=[{**_LEASE, "error": {"message": "timed out", "kind": "TimeoutError"}}],
    ),
)
async def fail_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    caller = request.caller
    failures = await read_as(request, LeaseFailRequest, Items("failures", LeaseFailure))
    return _settled(await request.context.leases.fail(caller.lease_tenant_id, failures, queues=caller.queues))


@post(
    "/v1/worker/release",
    _operation(
        "releaseTasks",
        "Give unstarted work back at once, without counting an attempt",
        _BECAME,
        LeaseReleaseRequest,
        leases=[_LEASE],
    ),
)
async def release_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    caller = request.caller
    leases = await read_as(request, LeaseReleaseRequest, Items("leases", Lease))
    return _settled(await request.context.leases.release(caller.lease_tenant_id, leases, queues=caller.queues))


ROUTES = [claim_tasks, heartbeat_leases, complete_tasks, fail_tasks, release_tasks]

"""/ping/{token}: jobs report their runs. No API key is needed: the token is part of the URL, as in Healthchecks.

A ping is never refused because of its body: the first 10,000 bytes of any type are kept. Unknown query parameters are ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple
from urllib.parse import parse_qs
from uuid import UUID

import msgspec

from everbeat.api.bodies import read_beginning
from everbeat.api.messages import ApiRequest, Response, raw_headers
from everbeat.api.operations import Operation, PathParameter, Success
from everbeat.api.problems import MALFORMED, NOT_FOUND, HttpProblem
from everbeat.api.routing import Handler, Route
from everbeat.core.checks import MAX_BODY_BYTES, PingKind, PingRequest

_SIGNALS = {"start": PingKind.START, "fail": PingKind.FAIL, "log": PingKind.LOG}
_EXIT_STATUS = re.compile(r"\d{1,3}", re.ASCII)
_MAX_EXIT_STATUS = 255
_MAX_USER_AGENT = 200
_OK = Response(200, b"OK", raw_headers({"Content-Type": "text/plain; charset=utf-8", "Ping-Body-Limit": str(MAX_BODY_BYTES)}))
_PATH = {
    "token": PathParameter("The secret of the check, from its ping URL.", {"type": "string"}),
    "signal": PathParameter(
        "`start`, `fail`, `log`, or the exit status of the job.", {"type": "string", "pattern": "^(start|fail|log|[0-9]{1,3})$"}
    ),
}


class PingQuery(msgspec.Struct):
    """The parameter of a ping. Others are ignored."""

    rid: (
        Annotated[str, msgspec.Meta(description="A run id, a UUID.", extra_json_schema={"format": "uuid"})] | msgspec.UnsetType
    ) = msgspec.UNSET


class _Signal(NamedTuple):
    kind: PingKind
    exit_status: int | None = None


async def ping(request: ApiRequest) -> Response:
    request.context.check_schema()  # a GET changes the database here
    signal = _signal_of(request.path_params.get("signal"))
    rid = _rid_of(request)
    body, size = (None, 0)
    if request.method == "POST":
        beginning, size = await read_beginning(request, MAX_BODY_BYTES)
        body = beginning or None
    given = PingRequest(
        kind=signal.kind,
        rid=rid,
        exit_status=signal.exit_status,
        method=request.method,
        address=_address_of(request),
        user_agent=_user_agent_of(request),
        body=body,
        body_bytes=size,
    )
    await request.context.pings.accept(request.path_params["token"], given)
    return _OK


def _signal_of(text: str | None) -> _Signal:
    if text is None:
        return _Signal(PingKind.SUCCESS)
    if text in _SIGNALS:
        return _Signal(_SIGNALS[text])
    if not _EXIT_STATUS.fullmatch(text) or int(text) > _MAX_EXIT_STATUS:
        raise HttpProblem(NOT_FOUND, "A ping ends with /start, /fail, /log or an exit status from 0 to 255.")
    return _Signal(PingKind.FAIL if int(text) else PingKind.SUCCESS, int(text))


def _rid_of(request: ApiRequest) -> UUID | None:
    query = request.scope["query_string"]
    if b"rid" not in query:
        return None
    values = parse_qs(query.decode("latin-1"), max_num_fields=None).get("rid")
    if not values:
        return None
    try:
        return UUID(values[-1])
    except ValueError:
        raise HttpProblem(MALFORMED, "The run id, rid, must be a UUID.") from None


def _address_of(request: ApiRequest) -> str | None:
    if request.caller.address is not None:
        return request.caller.address
    client = request.scope.get("client")
    return None if client is None else str(client[0])


def _user_agent_of(request: ApiRequest) -> str | None:
    text = request.header(b"user-agent")
    return None if text is None else "".join(one for one in text if one.isprintable())[:_MAX_USER_AGENT]


def _operation(id_: str, summary: str) -> Operation:
    return Operation(
        id=id_,
        scope=None,
        tag="Pings",
        summary=summary,
        description="Needs no API key. The body of a POST is kept with the ping: its first 10,000 bytes, of any type. HEAD is "
        "accepted like GET.",
        responses={200: Success("The ping was stored.", str, media_type="text/plain", example="OK")},
        problems=(404, 408, 413, 429),
        query=PingQuery,
        path=_PATH,
    )


def _routes(path: str, name: str, summary: str) -> list[Route]:
    handle: Handler = ping
    return [
        Route("GET", path, _operation(name, summary), handle),
        Route("POST", path, _operation(f"{name}WithBody", summary), handle),
    ]


ROUTES = [
    *_routes("/ping/{token}", "ping", "Report the success of a job"),
    *_routes("/ping/{token}/{signal}", "pingSignal", "Report the start, a failure, a log message or the exit status of a job"),
]

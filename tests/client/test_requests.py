"""The request builder: what is sent, what may be repeated, and how responses are decoded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from everbeat.client import requests
from everbeat.client.errors import ConflictProblem, NotAllowed, NotFoundProblem, ServerProblem, UnexpectedResponse
from everbeat.client.requests import HttpResponse, Repeat, Request
from everbeat.core.errors import Conflict, EverbeatError, NotFound
from everbeat.core.protocol import LeaseClaimRequest, LeaseHeartbeatRequest, TaskInput
from tests.factories import make_input


def body_of(request: Request) -> Any:
    assert request.body is not None
    return msgspec.json.decode(request.body)


def response(status: int = 200, body: Any = None, **headers: str) -> HttpResponse:
    return HttpResponse(status, {name.replace("_", "-"): value for name, value in headers.items()}, msgspec.json.encode(body))


# Submitting


def test_one_task_is_sent_with_its_key_in_the_header() -> None:
    (request,) = requests.submit([make_input(type="report", queue="reports", payload={"account": 7}, idempotency_key="r-7")])
    assert (request.method, request.path, request.repeat) == ("POST", "/v1/tasks", Repeat.SAFE)
    assert request.headers == {"content-type": "application/json", "idempotency-key": "r-7"}
    assert body_of(request) == {"type": "report", "queue": "reports", "payload": {"account": 7}}


def test_a_task_without_a_key_gets_a_unique_key() -> None:
    (one,), (other,) = requests.submit([make_input(type="a")]), requests.submit([make_input(type="a")])
    assert one.headers["idempotency-key"] != other.headers["idempotency-key"]


def test_many_tasks_are_sent_together_with_one_key_except_those_with_their_own() -> None:
    tasks = [make_input(type="a", idempotency_key="mine"), make_input(type="b")]
    (request,) = requests.submit(tasks)
    assert (request.path, request.repeat) == ("/v1/tasks/batch", Repeat.SAFE)
    assert body_of(request)["tasks"] == [
        {"type": "a", "payload": {}, "idempotency_key": "mine"},
        {"type": "b", "payload": {}},
    ]
    assert request.headers["idempotency-key"]


def test_each_batch_has_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_SUBMITTED", 2)
    made = list(requests.submit([make_input(type="a")] * 4))
    assert len({request.headers["idempotency-key"] for request in made}) == 2


def test_tasks_above_the_batch_limit_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_SUBMITTED", 3)
    batches = [len(body_of(request)["tasks"]) for request in requests.submit([make_input(type="a")] * 8)]
    assert batches == [3, 3, 2]


def test_a_batch_is_split_before_its_body_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_BODY_BYTES", 300)
    made = list(requests.submit([make_input(type="a", payload={"text": "x" * 150})] * 4))
    assert [len(body_of(request)["tasks"]) for request in made] == [1, 1, 1, 1]
    assert sum(len(request.body or b"") for request in made) > 300


def test_the_server_decodes_exactly_the_sent_task() -> None:
    task = make_input(type="a", run_at=datetime(2026, 1, 1, tzinfo=UTC), priority=3, labels={"a": "b"}, max_attempts=9)
    (request,) = requests.submit([task])
    assert msgspec.json.decode(request.body or b"", type=TaskInput) == task


# Other requests


def test_a_claim_is_never_repeated_and_waits_longer_than_its_poll() -> None:
    request = requests.claim(LeaseClaimRequest(worker="w", queues=["a"], wait_seconds=20))
    assert (request.repeat, request.timeout_seconds) == (Repeat.NEVER, 30)


def test_a_heartbeat_may_be_repeated() -> None:
    assert requests.heartbeat(LeaseHeartbeatRequest(worker="w", leases=[])).repeat is Repeat.SAFE


@pytest.mark.parametrize(
    ("method", "path", "repeat"),
    [
        ("GET", "/v1/tasks", Repeat.SAFE),
        ("PUT", "/v1/schedules/a", Repeat.SAFE),
        ("DELETE", "/v1/schedules/a", Repeat.SAFE),
        ("POST", "/v1/schedules/batch", Repeat.SAFE),
        ("POST", "/v1/schedules/a/pause", Repeat.SAFE),
        ("POST", "/v1/schedules/a/resume", Repeat.SAFE),
        ("POST", f"/v1/tasks/{UUID(int=1)}/cancel", Repeat.SAFE),
        ("POST", "/v1/schedules/a/trigger", Repeat.UNPROCESSED),
        ("POST", f"/v1/tasks/{UUID(int=1)}/retry", Repeat.UNPROCESSED),
        ("POST", "/v1/dead-letters/replay", Repeat.UNPROCESSED),
        ("POST", "/v1/schedules", Repeat.UNPROCESSED),
        ("PATCH", "/v1/schedules/a", Repeat.UNPROCESSED),
    ],
)
def test_it_determines_which_requests_may_be_repeated(method: str, path: str, repeat: Repeat) -> None:
    assert requests.build(method, path).repeat is repeat


def test_a_key_makes_a_request_safe_to_repeat() -> None:
    assert requests.build("POST", "/v1/schedules", headers={"Idempotency-Key": "k"}).repeat is Repeat.SAFE


def test_a_query_omits_missing_values() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    request = requests.build("GET", "/v1/x", query={"a": None, "b": "x y", "from": at, "dry": True})
    assert request.path == "/v1/x?b=x+y&from=2026-01-01T00%3A00%3A00.000000Z&dry=true"


def test_a_name_is_one_segment_of_a_path() -> None:
    assert requests.path_segment("a/b c:d") == "a%2Fb%20c%3Ad"


# Responses


@pytest.mark.parametrize(
    ("status", "kind", "base"),
    [
        (404, NotFoundProblem, NotFound),
        (409, ConflictProblem, Conflict),
        (401, NotAllowed, EverbeatError),
        (500, ServerProblem, EverbeatError),
    ],
)
def test_a_problem_becomes_an_exception(status: int, kind: type[Exception], base: type[Exception]) -> None:
    problem = {"type": "urn:everbeat:problem:some-slug", "title": "T", "status": status, "detail": "D", "request_id": "r1"}
    with pytest.raises(kind) as raised:
        requests.raise_for_problem(response(status, problem, retry_after="7"))
    assert isinstance(raised.value, ServerProblem)
    assert isinstance(raised.value, base)
    assert raised.value.slug == "some-slug"
    assert raised.value.retry_after_seconds == 7
    assert f"D (HTTP {status}, request r1)" in str(raised.value)


def test_a_problem_shows_each_invalid_field_once() -> None:
    errors = [{"field": "priority", "message": "is too large"}, {"field": "queue", "message": "is invalid"}]
    with pytest.raises(ServerProblem) as raised:
        requests.raise_for_problem(response(422, {"detail": "priority: is too large", "errors": errors}))
    assert str(raised.value) == "priority: is too large; queue: is invalid (HTTP 422)"


def test_a_missing_key_names_the_variable() -> None:
    with pytest.raises(NotAllowed, match="EVERBEAT_API_KEY"):
        requests.raise_for_problem(response(401, {"detail": "no key"}))


def test_a_refused_host_does_not_ask_for_a_key() -> None:
    with pytest.raises(ServerProblem) as raised:
        requests.raise_for_problem(response(403, {"type": "urn:everbeat:problem:forbidden-origin", "detail": "no"}))
    assert "EVERBEAT_API_KEY" not in str(raised.value)


def test_a_problem_of_a_proxy_is_shown_unchanged() -> None:
    with pytest.raises(ServerProblem, match="Bad Gateway"):
        requests.raise_for_problem(HttpResponse(502, {}, b"<html>Bad Gateway</html>"))


def test_a_response_that_is_not_from_everbeat_is_recognized() -> None:
    with pytest.raises(UnexpectedResponse, match=r"text/html\) is not from Everbeat.*right URL"):
        requests.claimed_tasks_of(HttpResponse(200, {"content-type": "text/html"}, b"<html>"))

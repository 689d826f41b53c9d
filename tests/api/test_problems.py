"""Failures as clients see them: problem documents without internals."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from everbeat.api.app import ApiContext
from everbeat.core.errors import Conflict, EverbeatError, StoreRefused, StoreUnavailable, StoreUnusable
from everbeat.services.publisher import ChangePublisher
from everbeat.services.schedules import ScheduleService
from tests.api.conftest import definition, make_client, problem_of


class FailingSchedules(ScheduleService):
    """A service that always fails with the same error."""

    def __init__(self, context: ApiContext, error: Exception) -> None:
        super().__init__(context.store, context.timelines, ChangePublisher(context.store))
        self._error = error

    async def get(self, *_args: Any, **_options: Any) -> Any:
        raise self._error

    create = patch = get


def failing(context: ApiContext, error: Exception) -> httpx.AsyncClient:
    return make_client(context._replace(schedules=FailingSchedules(context, error)))


@pytest.mark.parametrize("path", ["/v1", "/v1/nothing", "/v1/schedules/a/b/c", "/v2/schedules", "/schema", "/docs"])
async def test_an_unknown_path_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    assert problem_of(await client.get(path), 404)["type"] == "urn:everbeat:problem:not-found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/schedules", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("POST", "/v1/schedules/a", {"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"}),
        ("GET", "/v1/schedules/batch", {"POST", "OPTIONS"}),
        ("GET", "/v1/schedules/a/pause", {"POST", "OPTIONS"}),
        ("POST", "/v1/cluster", {"GET", "HEAD", "OPTIONS"}),
        ("TRACE", "/healthz", {"GET", "HEAD", "OPTIONS"}),
        ("BREW", "/metrics", {"GET", "HEAD", "OPTIONS"}),
    ],
)
async def test_the_response_to_a_wrong_method_lists_the_allowed_ones(
    client: httpx.AsyncClient, method: str, path: str, allowed: set[str]
) -> None:
    response = await client.request(method, path)

    problem_of(response, 405)
    assert set(response.headers["allow"].split(", ")) == allowed
    options = await client.options(path)
    assert options.status_code == 204
    assert set(options.headers["allow"].split(", ")) == allowed


async def test_an_unavailable_database_is_503_with_retry_after(context: ApiContext) -> None:
    async with failing(context, StoreUnavailable("host=db password=secret")) as client:
        response = await client.get("/v1/schedules/a")

    assert "secret" not in problem_of(response, 503)["detail"]
    assert 1 <= int(response.headers["retry-after"]) <= 5


async def test_an_unusable_database_is_503_with_retry_after(context: ApiContext) -> None:
    async with failing(context, StoreUnusable("page 5 is corrupt")) as client:
        response = await client.get("/v1/schedules/a")

    assert problem_of(response, 503)["type"] == "urn:everbeat:problem:database-unusable"
    assert int(response.headers["retry-after"]) >= 1


async def test_a_write_that_the_database_refused_is_a_conflict_and_logged(context: ApiContext) -> None:
    with capture_logs() as logs:
        async with failing(context, StoreRefused("constraint schedules_check")) as client:
            response = await client.post("/v1/schedules", json=definition())

    assert "schedules_check" not in problem_of(response, 409)["detail"]
    assert [entry["event"] for entry in logs] == ["request_failed"]


async def test_a_conflict_describes_its_cause(context: ApiContext) -> None:
    async with failing(context, Conflict("it is being changed")) as client:
        problem = problem_of(await client.patch("/v1/schedules/a", json={}), 409)

    assert problem["detail"] == "it is being changed"


@pytest.mark.parametrize("error", [RuntimeError("secret"), KeyError("secret"), EverbeatError("secret"), RecursionError()])
async def test_an_unexpected_error_is_logged_and_not_shown(context: ApiContext, error: Exception) -> None:
    with capture_logs() as logs:
        async with failing(context, error) as client:
            response = await client.get("/v1/schedules/a")

    problem = problem_of(response, 500)
    assert "secret" not in response.text
    (entry,) = logs
    assert (entry["event"], entry["request_id"]) == ("request_failed", problem["request_id"])
    assert entry["exc_info"] is error

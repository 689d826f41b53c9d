"""GET /v1/openapi.json."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest

from everbeat.api import check_responses, responses
from everbeat.api.app import ROUTES
from everbeat.api.problems import Problem
from everbeat.core import protocol
from everbeat.core import responses as core_responses

CONTRACT = {
    "/v1/schedules": {"get", "post"},
    "/v1/schedules/batch": {"post"},
    "/v1/schedules/{ref}": {"get", "put", "patch", "delete"},
    "/v1/schedules/{ref}/pause": {"post"},
    "/v1/schedules/{ref}/resume": {"post"},
    "/v1/schedules/{ref}/ticks": {"get"},
    "/v1/schedules/{ref}/why": {"get"},
    "/v1/schedules/{ref}/trigger": {"post"},
    "/v1/schedules/{ref}/backfill": {"post"},
    "/v1/schedules/{ref}/executions": {"get"},
    "/v1/tasks": {"get", "post"},
    "/v1/tasks/batch": {"post"},
    "/v1/tasks/{id}": {"get"},
    "/v1/tasks/{id}/attempts": {"get"},
    "/v1/tasks/{id}/log": {"get"},
    "/v1/tasks/{id}/cancel": {"post"},
    "/v1/tasks/{id}/retry": {"post"},
    "/v1/tasks/{id}/reschedule": {"post"},
    "/v1/worker/claim": {"post"},
    "/v1/worker/heartbeat": {"post"},
    "/v1/worker/complete": {"post"},
    "/v1/worker/fail": {"post"},
    "/v1/worker/release": {"post"},
    "/v1/dead-letters": {"get"},
    "/v1/dead-letters/{task_id}": {"get"},
    "/v1/dead-letters/{task_id}/replay": {"post"},
    "/v1/dead-letters/replay": {"post"},
    "/v1/dead-letters/purge": {"post"},
    "/v1/preview": {"post"},
    "/v1/audit": {"get"},
    "/v1/audit/findings": {"get"},
    "/v1/audit-log": {"get"},
    "/v1/tenants": {"get", "post"},
    "/v1/tenants/{tenant}": {"get", "patch"},
    "/v1/tenants/{tenant}/keys": {"get", "post"},
    "/v1/keys/{key_id}": {"delete"},
    "/v1/cluster": {"get"},
    "/v1/slo": {"get"},
    "/v1/tasks/{id}/why": {"get"},
    "/v1/queues": {"get"},
    "/v1/queues/{queue}/pause": {"post"},
    "/v1/queues/{queue}/resume": {"post"},
    "/v1/pause": {"post"},
    "/v1/resume": {"post"},
    "/v1/pauses": {"get"},
    "/v1/schedules/bulk": {"post"},
    "/v1/tasks/bulk": {"post"},
    "/v1/operations": {"get"},
    "/v1/operations/{id}": {"get"},
    "/v1/operations/{id}/cancel": {"post"},
    "/v1/workers": {"get"},
    "/v1/events": {"get"},
    "/v1/callbacks/{id}/complete": {"post"},
    "/v1/callbacks/{id}/fail": {"post"},
    "/v1/callbacks/{id}/heartbeat": {"post"},
    "/v1/endpoints": {"get"},
    "/v1/endpoints/{name}": {"get", "put", "delete"},
    "/v1/endpoints/{name}/rotate": {"post"},
    "/v1/alerts": {"get"},
    "/v1/alerts/{name}": {"get", "put", "delete"},
    "/v1/incidents": {"get"},
    "/v1/incidents/{id}": {"get"},
    "/v1/incidents/{id}/acknowledge": {"post"},
    "/v1/calendars": {"get"},
    "/v1/calendars/{name}": {"get", "put", "delete"},
    "/v1/checks": {"get"},
    "/v1/checks/{name}": {"get", "put", "delete"},
    "/v1/checks/{name}/pause": {"post"},
    "/v1/checks/{name}/resume": {"post"},
    "/v1/checks/{name}/rotate": {"post"},
    "/v1/checks/{name}/why": {"get"},
    "/v1/checks/{name}/pings": {"get"},
    "/v1/checks/{name}/ticks": {"get"},
    "/v1/checks/{name}/transitions": {"get"},
    "/ping/{token}": {"get", "post"},
    "/ping/{token}/{signal}": {"get", "post"},
    "/v1/openapi.json": {"get"},
    "/": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    response = await client.get("/v1/openapi.json")
    assert response.headers["content-type"] == "application/json"
    document: dict[str, Any] = response.json()
    return document


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]


async def test_it_describes_exactly_the_existing_routes(document: dict[str, Any]) -> None:
    served = {(route.path, route.method.lower()) for route in ROUTES}
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}

    assert described == served
    assert {path: set(methods) for path, methods in document["paths"].items()} == CONTRACT


async def test_every_operation_has_a_unique_name_and_documented_problems(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for operation in operations(document)]

    assert len(set(ids)) == len(ids)
    for operation in operations(document):
        assert operation["summary"]
        assert {"400", "403", "503"} <= set(operation["responses"])
        for response in operation["responses"].values():
            assert "X-Request-Id" in response["headers"]
        if "requestBody" in operation:
            assert {"408", "413", "415", "422"} <= set(operation["responses"])


async def test_every_reference_can_be_resolved(document: dict[str, Any]) -> None:
    text = msgspec.json.encode(document).decode()

    for reference in set(re.findall(r'"#/([^"]+)"', text)):
        found: Any = document
        for part in reference.split("/"):
            found = found[part]
        assert found


async def test_bodies_refuse_unknown_fields(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for operation in operations(document):
        if "requestBody" in operation:
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert schemas[reference.rpartition("/")[2]]["additionalProperties"] is False


async def test_lists_document_their_limit(document: dict[str, Any]) -> None:
    lists = ("/v1/schedules", "/v1/calendars", "/v1/audit", "/v1/schedules/{ref}/ticks", "/v1/schedules/{ref}/executions")
    of_tasks = ("/v1/tasks", "/v1/tasks/{id}/attempts", "/v1/tasks/{id}/log", "/v1/dead-letters")
    for path in (*lists, *of_tasks):
        parameters = {one["name"]: one for one in document["paths"][path]["get"]["parameters"]}
        schema = parameters["limit"]["schema"]
        assert (schema["minimum"], schema["maximum"], schema["default"]) == (1, 1000, 50)
        assert "cursor" in parameters


async def test_its_examples_are_accepted(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    paths = {
        "/v1/schedules": "/v1/schedules",
        "/v1/schedules/batch": "/v1/schedules/batch",
        "/v1/schedules/{ref}": "/v1/schedules/nightly-report",
        "/v1/preview": "/v1/preview",
        "/v1/calendars/{name}": "/v1/calendars/days-off",
        "/v1/schedules/{ref}/trigger": "/v1/schedules/nightly-report/trigger",
        "/v1/schedules/{ref}/backfill": "/v1/schedules/nightly-report/backfill",
        "/v1/tasks": "/v1/tasks",
        "/v1/tasks/batch": "/v1/tasks/batch",
        "/v1/worker/claim": "/v1/worker/claim",
        "/v1/worker/heartbeat": "/v1/worker/heartbeat",
        "/v1/worker/complete": "/v1/worker/complete",
        "/v1/worker/fail": "/v1/worker/fail",
        "/v1/worker/release": "/v1/worker/release",
        "/v1/dead-letters/replay": "/v1/dead-letters/replay",
        "/v1/dead-letters/purge": "/v1/dead-letters/purge",
    }
    for template, path in paths.items():
        for method in ("post", "put", "patch"):
            body = document["paths"][template].get(method, {}).get("requestBody")
            for example in body["content"]["application/json"]["examples"].values() if body else ():
                response = await client.request(method, path, json=example["value"])
                assert response.status_code in (200, 201), (path, response.text)


async def test_the_server_url_is_relative(document: dict[str, Any]) -> None:
    assert document["servers"] == [{"url": "/"}]
    assert document["openapi"].startswith("3.1")


async def test_every_response_and_problem_has_a_valid_example(document: dict[str, Any]) -> None:
    known = {**vars(protocol), **vars(core_responses), **vars(responses), **vars(check_responses), "Problem": Problem}
    shapes = {name: one for name, one in known.items() if isinstance(one, type)}
    for operation in operations(document):
        for status, response in operation["responses"].items():
            for media_type, content in response.get("content", {}).items():
                if media_type == "text/plain" or (status == "503" and operation["operationId"] in ("healthz", "readyz")):
                    continue
                assert "example" in content, (operation["operationId"], status)
                if name := content["schema"].get("$ref", "").rpartition("/")[2]:
                    seen = msgspec.to_builtins(msgspec.convert(content["example"], shapes[name]))
                    assert name == "HealthResponse" or seen == content["example"], (operation["operationId"], status)


async def test_every_body_with_fields_has_examples(document: dict[str, Any]) -> None:
    for operation in operations(document):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None and document["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]["properties"]:
            assert body["examples"], operation["operationId"]

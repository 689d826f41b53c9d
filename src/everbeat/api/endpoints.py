"""/v1/endpoints: named destinations of webhooks, with signing secrets that are shown once."""

from __future__ import annotations

from everbeat.api import paging
from everbeat.api.bodies import read_as
from everbeat.api.messages import NO_CONTENT, ApiRequest, Response, json_response
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import NoQuery, PageQuery
from everbeat.api.responses import EndpointList, EndpointResponse
from everbeat.api.routing import delete, get, post, put
from everbeat.core.access import Scope
from everbeat.core.definitions import number, optional_rfc3339, rfc3339
from everbeat.core.endpoints import EndpointInput, WebhookEndpoint
from everbeat.core.target_secrets import shown_headers

_EXAMPLE = {
    "url": "https://billing.example.org/hooks",
    "headers": {"Authorization": "Bearer 8f14e45f"},
    "max_concurrent": 20,
    "rate_per_second": 50,
}


@get(
    "/v1/endpoints",
    Operation(
        id="listEndpoints",
        tag="Endpoints",
        summary="List endpoints by name",
        responses={200: Success("A page of endpoints.", EndpointList)},
        query=PageQuery,
    ),
)
async def list_endpoints(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    after_name = paging.name_after(query.cursor)
    found = await request.context.endpoints.page(request.tenant_id, after_name=after_name, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.name_cursor(last.name)
    return json_response(EndpointList([_item(endpoint) for endpoint in page], next_cursor))


@get(
    "/v1/endpoints/{name}",
    Operation(
        id="getEndpoint",
        tag="Endpoints",
        summary="Read an endpoint, without its secrets",
        responses={200: Success("The endpoint.", EndpointResponse, headers=("ETag",))},
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_endpoint(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return _response(await request.context.endpoints.get(request.tenant_id, request.path_params["name"]))


@put(
    "/v1/endpoints/{name}",
    Operation(
        id="putEndpoint",
        scope=Scope.MANAGE,
        tag="Endpoints",
        summary="Create an endpoint with a signing secret, which is shown only this once, or replace it",
        responses={
            200: Success("The endpoint. Its secrets are unchanged.", EndpointResponse, headers=("ETag",)),
            201: Success("The new endpoint with its secret.", EndpointResponse, headers=("ETag", "Location")),
        },
        query=NoQuery,
        body=Body(EndpointInput, {"billing": _EXAMPLE}),
        problems=(409,),
    ),
)
async def put_endpoint(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    given = await read_as(request, EndpointInput)
    name = request.path_params["name"]
    endpoint, secret = await request.context.endpoints.put(request.tenant_id, name, given, by=request.caller)
    return _response(endpoint, 200 if secret is None else 201, secret)


@post(
    "/v1/endpoints/{name}/rotate",
    Operation(
        id="rotateEndpoint",
        scope=Scope.MANAGE,
        tag="Endpoints",
        summary="Give an endpoint a new signing secret; the old one stays valid for 24 hours",
        responses={200: Success("The endpoint with its new secret.", EndpointResponse, headers=("ETag",))},
        query=NoQuery,
        problems=(404, 409),
    ),
)
async def rotate_endpoint(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    name = request.path_params["name"]
    endpoint, secret = await request.context.endpoints.rotate(request.tenant_id, name, by=request.caller)
    return _response(endpoint, secret=secret)


@delete(
    "/v1/endpoints/{name}",
    Operation(
        id="deleteEndpoint",
        scope=Scope.MANAGE,
        tag="Endpoints",
        summary="Remove an endpoint; tasks for it become dead letters",
        responses={204: Success("The endpoint was removed.")},
        query=NoQuery,
        problems=(404,),
    ),
)
async def delete_endpoint(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    await request.context.endpoints.delete(request.tenant_id, request.path_params["name"], by=request.caller)
    return NO_CONTENT


def _response(endpoint: WebhookEndpoint, status: int = 200, secret: str | None = None) -> Response:
    headers = {"ETag": f'"{endpoint.revision}"'}
    if status == 201:
        headers["Location"] = f"/v1/endpoints/{endpoint.name}"
    item = _item(endpoint)
    if secret is not None:
        item.secret = secret
    return json_response(item, status, headers)


def _item(endpoint: WebhookEndpoint) -> EndpointResponse:
    return EndpointResponse(
        name=endpoint.name,
        url=endpoint.url,
        method=endpoint.method,
        headers=shown_headers(endpoint.headers),
        max_concurrent=endpoint.max_concurrent,
        rate_per_second=None if endpoint.rate_per_second is None else number(endpoint.rate_per_second),
        old_secret_until=optional_rfc3339(endpoint.old_secret_until),
        revision=endpoint.revision,
        created_at=rfc3339(endpoint.created_at),
        updated_at=rfc3339(endpoint.updated_at),
    )


ROUTES = [list_endpoints, get_endpoint, put_endpoint, rotate_endpoint, delete_endpoint]

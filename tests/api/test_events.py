"""GET /v1/events: in process over ASGI, and on real servers: two nodes on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from everbeat.api import events
from everbeat.api.app import ApiContext, build_app
from everbeat.config import Settings
from everbeat.core.protocol import LeaseClaimRequest, LeaseCompleteRequest, LeaseCompletion, TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.server import EmbeddedNode, Node
from everbeat.services import event_stream as event_streams
from everbeat.services.access import Authenticator
from everbeat.services.event_stream import EventKind
from everbeat.services.keys import KeyService
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from tests.api.conftest import fields_of, problem_of, submit
from tests.factories import OTHER_TENANT
from tests.support.processes import free_port, wait_until_async


class Stream:
    """An open event stream, driven as a server would."""

    def __init__(self, context: ApiContext, query: str = "", key: str | None = None) -> None:
        self._app: Any = build_app(context)
        self._disconnected = asyncio.Event()
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._query = query
        self._headers = [(b"host", b"localhost"), *([(b"authorization", f"Bearer {key}".encode())] if key else [])]
        self._text = b""
        self.status = 0
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Stream:
        scope = {
            **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"},
            **{"path": "/v1/events", "raw_path": b"/v1/events", "query_string": self._query.encode(), "root_path": ""},
            **{"headers": self._headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {}},
        }
        self.serving = asyncio.create_task(self._app(scope, self._receive, self._sent.put))
        start = await self._next()
        self.status = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return self

    async def __aexit__(self, *_: object) -> None:
        self._disconnected.set()
        async with asyncio.timeout(5):
            await self.serving

    async def _receive(self) -> Any:
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _next(self) -> Any:
        async with asyncio.timeout(5):
            return await self._sent.get()

    async def block(self) -> str:
        """Return the next event or comment as written, or an empty string at the end."""
        while b"\n\n" not in self._text:
            message = await self._next()
            self._text += message.get("body", b"")
            if not message.get("more_body"):
                return ""
        block, _, self._text = self._text.partition(b"\n\n")
        return block.decode()

    async def event(self) -> tuple[str, Any]:
        return parsed(await self.block())


def parsed(block: str) -> tuple[str, Any]:
    fields = dict(line.split(": ", 1) for line in block.splitlines())
    assert set(fields) == {"id", "event", "data"}
    return fields["event"], msgspec.json.decode(fields["data"])


async def test_a_stream_sends_hello_and_then_events(context: ApiContext, client: httpx.AsyncClient) -> None:
    async with Stream(context) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert await stream.event() == ("hello", {"hears": "node", "replays": False})
        task = await submit(client, "build", queue="reports")
        kind, data = await stream.event()
        assert (kind, data["change"], data["id"], data["queue"]) == ("task", "submitted", task["id"], "reports")
        context.event_stream.publish(EventKind.TASK, OTHER_TENANT, {"other": "tenant"})
        await client.post(f"/v1/tasks/{task['id']}/cancel")
        assert (await stream.event())[1]["change"] == "cancelled"
    assert not context.event_stream.has_subscribers


async def test_types_select_the_events(context: ApiContext, client: httpx.AsyncClient) -> None:
    async with Stream(context, "types=tick,cluster") as stream:
        await stream.event()
        await submit(client)
        context.event_stream.publish(EventKind.CLUSTER, None, {"change": "joined"})
        assert await stream.event() == ("cluster", {"change": "joined"})
    assert fields_of(await client.get("/v1/events?types=tick,hello")) == ["types"]
    assert fields_of(await client.get("/v1/events?since=1")) == ["since"]


async def test_a_quiet_stream_is_kept_alive(context: ApiContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.01)
    async with Stream(context) as stream:
        await stream.event()
        assert await stream.block() == ": keep-alive"


async def test_a_stream_ends_when_the_server_stops(context: ApiContext) -> None:
    async with Stream(context) as stream:
        await stream.event()
        context.event_stream.close()
        assert await stream.block() == ""


async def test_a_stream_ends_when_its_key_is_revoked(context: ApiContext, store: Store) -> None:
    keys, access = KeyService(store), Authenticator(store, KeySessions(), is_required=True)
    made = [await keys.create(DEFAULT_TENANT, name, ["read"]) for name in ("one", "two")]
    context = context._replace(access=access)
    async with Stream(context, key=made[0].text) as revoked, Stream(context, key=made[1].text) as other:
        await revoked.event()
        await other.event()
        access.sessions.end([made[0].key.id])
        assert await revoked.block() == ""
        context.event_stream.publish(EventKind.CLUSTER, None, {"change": "joined"})
        assert (await other.event())[0] == "cluster"


async def test_the_number_of_streams_is_limited(
    context: ApiContext, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "MAX_SUBSCRIBERS_PER_TENANT", 1)
    async with Stream(context) as stream:
        await stream.event()
        response = await client.get("/v1/events")
        assert "event streams" in problem_of(response, 429)["detail"]
        assert response.headers["retry-after"] == "10"


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[asyncio.Event]:
    node, stop, started = Node(settings), asyncio.Event(), asyncio.Event()

    async def on_started(_: Any) -> None:
        started.set()

    running = asyncio.create_task(node.run(stop, on_started))
    try:
        async with asyncio.timeout(20):
            await started.wait()
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(30):
            await running


async def test_a_stream_receives_events_of_other_nodes_and_ends_with_its_own_node(postgres_url: str) -> None:
    port = free_port()
    other = EmbeddedNode(Settings(database_url=postgres_url, roles=("scheduler",), node_name="other"))
    await other.start()
    try:
        async with (
            serving(Settings(database_url=postgres_url, port=port, roles=("api",), node_name="listening")) as stop,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
        ):
            await wait_until_async(lambda: is_ready(client), 20, "the node is ready")
            async with client.stream("GET", "/v1/events?types=tick,task") as response:
                lines = response.aiter_lines()
                assert await next_event(lines) == ("hello", {"hears": "cluster", "replays": False})
                await wait_until_async(
                    lambda: asyncio.sleep(0, other.engine.event_stream.has_subscribers),
                    20,
                    "the other node has received the interest",
                )
                task, _ = await other.tasks.submit(DEFAULT_TENANT, TaskInput(type="work"))
                (claimed,) = await other.leases.claim(DEFAULT_TENANT, LeaseClaimRequest(worker="w", queues=["default"]))
                result = LeaseCompletion(id=claimed.id, fence=claimed.fence)
                await other.leases.complete(DEFAULT_TENANT, LeaseCompleteRequest(worker="w", results=[result]))
                received = [await next_event(lines) for _ in range(3)]
                assert [(kind, data["change"], data["id"]) for kind, data in received] == [
                    ("task", change, str(task.id)) for change in ("submitted", "claimed", "completed")
                ]
                stop.set()
                assert [line async for line in lines if line] == []
    finally:
        await other.stop()


async def is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def next_event(lines: AsyncIterator[str]) -> tuple[str, Any]:
    block = []
    async with asyncio.timeout(15):
        async for line in lines:
            if line:
                block.append(line)
            elif block and not block[0].startswith(":"):
                break
            else:
                block = []
    return parsed("\n".join(block))

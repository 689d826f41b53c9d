"""The app: its URL and name, its client, and the registration of its schedules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from everbeat import Everbeat
from everbeat.client.errors import InvalidUrl, RegistrationError
from everbeat.client.inprocess import InProcessTransport
from everbeat.core.responses import ScheduleResponse, TaskResponse
from tests.client.fakes import FakeNode
from tests.client.samples import sample
from tests.client.scripted import ScriptedServer

# URLs


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080",
        "https://everbeat.example.com/base",
        "sqlite:///app.db",
        "sqlite:////var/lib/app.db",
        "postgresql://user@host/name",
        "postgres://host/name",
    ],
)
def test_it_accepts_urls_of_servers_and_databases(url: str) -> None:
    assert Everbeat(url).url == url


def test_it_accepts_the_urls_of_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Everbeat(["http://a:1", "https://b/"]).url == "http://a:1,https://b"
    assert Everbeat("http://a:1, http://b:2,http://a:1,").url == "http://a:1,http://b:2"
    assert Everbeat("postgresql://user@one,two/name").url == "postgresql://user@one,two/name"
    monkeypatch.setenv("EVERBEAT_URL", "http://a:1,http://b:2")
    assert Everbeat().http_transport().servers.urls == ("http://a:1", "http://b:2")


def test_the_default_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Everbeat().url == "http://127.0.0.1:8080"
    monkeypatch.setenv("EVERBEAT_URL", "http://other:9000/")
    assert Everbeat().url == "http://other:9000"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is not a URL"),
        ("localhost:8080", "did you mean http://localhost:8080?"),
        ("app.db", "did you mean sqlite:///app.db?"),
        ("sqlite://app.db", "has two slashes; write sqlite:///app.db"),
        ("sqlite:///", "has no file name"),
        ("sqlite:///:memory:", "has no file name"),
        ("postgresql+asyncpg://host/name", "names a driver; write postgresql://"),
        ("mysql://host/name", '"mysql://" is not supported'),
        ("http://", "has no host"),
        ("http://host:port", "is not a URL"),
        ("http://user:secret@host", "pass the API key as api_key="),
        ("http://host/?a=b", "has a query"),
        (7, "is a int, not a string"),
        ([7], "is a list, not a string or a list of strings"),
        ([], "there is no URL"),
        ("http://a,b:8080", "did you mean http://b:8080?"),
        (["http://a", "sqlite:///app.db"], '"sqlite:///app.db" is a database; several URLs can only be'),
    ],
)
def test_a_wrong_url_is_refused_when_the_app_is_created(url: Any, message: str) -> None:
    with pytest.raises(InvalidUrl) as refused:
        Everbeat(url)
    assert message in str(refused.value)


def test_a_wrong_name_is_refused_when_the_app_is_created() -> None:
    with pytest.raises(RegistrationError, match="the app's name 'a b' must be"):
        Everbeat(name="a b")


def test_the_api_key_comes_from_the_environment(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_API_KEY", "eb_environment")
    for api_key, expected in ((None, "Bearer eb_environment"), ("eb_given", "Bearer eb_given")):
        eb = Everbeat(server.url, api_key=api_key)
        eb.submit("a")
        eb.close()
        assert server.received[-1].headers["authorization"] == expected


# The client


CALLS: list[tuple[Callable[[Any], Any], tuple[str, str, Any]]] = [
    (lambda client: client.schedules.put({"name": "a b"}), ("PUT", "/v1/schedules/a%20b", {"name": "a b"})),
    (lambda client: client.schedules.get("n"), ("GET", "/v1/schedules/n", None)),
    (lambda client: client.schedules.list(status="paused"), ("GET", "/v1/schedules?status=paused&limit=100", None)),
    (lambda client: client.schedules.pause("n"), ("POST", "/v1/schedules/n/pause", {})),
    (lambda client: client.schedules.pause("n", "why"), ("POST", "/v1/schedules/n/pause", {"note": "why"})),
    (lambda client: client.schedules.resume("n"), ("POST", "/v1/schedules/n/resume", {})),
    (lambda client: client.schedules.trigger("n"), ("POST", "/v1/schedules/n/trigger", {})),
    (lambda client: client.schedules.trigger("n", [1]), ("POST", "/v1/schedules/n/trigger", {"payload": [1]})),
    (lambda client: client.schedules.delete("n"), ("DELETE", "/v1/schedules/n", None)),
    (
        lambda client: client.schedules.ticks("n", from_=datetime(2026, 1, 1, tzinfo=UTC), limit=5),
        ("GET", "/v1/schedules/n/ticks?from=2026-01-01T00%3A00%3A00.000000Z&limit=5", None),
    ),
    (lambda client: client.schedules.executions("n"), ("GET", "/v1/schedules/n/executions?limit=100", None)),
    (lambda client: client.tasks.list(state="dead"), ("GET", "/v1/tasks?state=dead&limit=100", None)),
    (lambda client: client.tasks.cancel("i"), ("POST", "/v1/tasks/i/cancel", None)),
    (lambda client: client.tasks.retry("i"), ("POST", "/v1/tasks/i/retry", {})),
    (lambda client: client.tasks.attempts("i"), ("GET", "/v1/tasks/i/attempts?limit=100", None)),
    (lambda client: client.tasks.log("i"), ("GET", "/v1/tasks/i/log?limit=1000", None)),
    (lambda client: client.dead_letters.list(queue="q"), ("GET", "/v1/dead-letters?queue=q&limit=100", None)),
    (lambda client: client.dead_letters.get("i"), ("GET", "/v1/dead-letters/i", None)),
    (lambda client: client.dead_letters.replay("i"), ("POST", "/v1/dead-letters/i/replay", {})),
    (
        lambda client: client.dead_letters.replay_all({"queue": "q"}, rate_per_second=5),
        ("POST", "/v1/dead-letters/replay", {"filter": {"queue": "q"}, "rate_per_second": 5}),
    ),
]


@pytest.mark.parametrize(("call", "requested"), CALLS)
async def test_each_method_sends_its_request(
    server: ScriptedServer, call: Callable[[Any], Any], requested: tuple[str, str, Any]
) -> None:
    eb = Everbeat(server.url)
    call(eb.client)
    await call(eb.async_client)
    eb.close()
    assert [(received.method, received.path, received.body) for received in server.received] == [requested, requested]


async def test_a_list_follows_its_pages() -> None:
    pages = {"limit=1000": ("ab", "c1"), "limit=1000&cursor=c1": ("c", "c2"), "limit=1000&cursor=c2": ("d", None)}

    def respond(method: str, path: str, body: Any) -> tuple[int, Any]:
        names, cursor = pages[path.partition("?")[2]]
        return 200, {"items": [sample(TaskResponse, id=name) for name in names], "next_cursor": cursor}

    eb = Everbeat()
    node = FakeNode(respond)
    with eb.attached(InProcessTransport(node)):
        assert [task.id for task in await eb.async_client.tasks.list(limit=None)] == ["a", "b", "c", "d"]


# Registering


class Server:
    """Stores schedules by name, as the API does."""

    def __init__(self) -> None:
        self.schedules: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []

    def respond(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/schedules/batch":
            return 200, {"items": [self._put(one) for one in body["schedules"]]}
        if method == "DELETE":
            self.deleted.append(path.rpartition("/")[2])
            return 204, None
        assert path.startswith("/v1/schedules?target=worker")
        return 200, {"items": list(self.schedules.values()), "next_cursor": None}

    def _put(self, definition: dict[str, Any]) -> dict[str, Any]:
        known = self.schedules.get(definition["name"])
        self.schedules[definition["name"]] = sample(ScheduleResponse, **definition, id=f"id-{definition['name']}")
        status = "created" if known is None else "unchanged" if known == self.schedules[definition["name"]] else "updated"
        return {"id": "x", "name": definition["name"], "status": status}


def nothing() -> None: ...


async def test_it_registers_declared_schedules_and_returns_their_status() -> None:
    server = Server()
    for expression, outcome in (("@daily", "created"), ("@daily", "unchanged"), ("@hourly", "updated")):
        eb = Everbeat(name="billing")
        eb.cron(expression)(nothing)
        with eb.attached(InProcessTransport(FakeNode(server.respond))):
            done = await eb.register_async()
        assert getattr(done, outcome) == ["nothing"]
        assert str(done) == f"schedules: 1 {outcome}"


async def test_it_prunes_only_its_own_schedules_that_are_no_longer_declared() -> None:
    server = Server()
    for name, app in (("mine-old", "billing"), ("theirs", "shipping"), ("manual", None), ("nothing", "billing")):
        labels = {} if app is None else {"everbeat.app": app}
        server.schedules[name] = sample(ScheduleResponse, name=name, id=f"id-{name}", labels=labels)
    eb = Everbeat(name="billing")
    eb.cron("@daily")(nothing)
    with eb.attached(InProcessTransport(FakeNode(server.respond))):
        done = await eb.register_async(prune=True)
    assert done.pruned == ["mine-old"]
    assert server.deleted == ["id-mine-old"]


def test_an_app_with_the_default_name_does_not_prune() -> None:
    with pytest.raises(RegistrationError, match="would delete the schedules of other apps"):
        Everbeat().register(prune=True)


async def test_a_past_schedule_is_neither_registered_nor_pruned() -> None:
    server = Server()
    server.schedules["once"] = sample(ScheduleResponse, name="once", id="id-once", labels={"everbeat.app": "billing"})
    eb = Everbeat(name="billing")
    eb.at(datetime.now(UTC) - timedelta(days=1), name="once")(nothing)
    with eb.attached(InProcessTransport(FakeNode(server.respond))):
        done = await eb.register_async(prune=True)
    assert done.over == ["once"]
    assert (done.created, done.pruned) == ([], [])

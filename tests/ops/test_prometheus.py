"""Prometheus scrapes a real server: alerts arrive at a webhook and end, and all queries of rules and dashboard work."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from everbeat.telemetry.collectors import LevelCollector, SampleCollector
from tests.conftest import skip_or_fail
from tests.support.local_server import ServiceMissing
from tests.support.processes import ServerProcess, free_port, wait_until
from tests.support.prometheus import Alertmanager, Prometheus, find_promtool

ROOT = Path(__file__).parents[2]
OPS = ROOT / "ops"
RULES = OPS / "prometheus-rules.yml"
RUNBOOKS = ROOT / "docs" / "howto" / "runbooks"
VARIABLES = {"$job": "everbeat", "$__rate_interval": "5s"}
# Part of Prometheus, not of the server.
OTHER_METRICS = {"up", "ALERTS"}

_STRING = re.compile(r'"[^"]*"')
_NAME = re.compile(r"\b(?:everbeat|process)_\w+\b|\bup\b")


class AlertReceiver:
    """An HTTP server that keeps the alerts that it gets."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.alerts += json.loads(body)["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/alerts"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def statuses(self, name: str) -> list[str]:
        return [alert["status"] for alert in self.alerts if alert["labels"]["alertname"] == name]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


ALERTS = [rule for rule in rules() if "alert" in rule]


def names_in(expression: str) -> set[str]:
    """Return the names of the metrics in an expression, without the parts of a histogram."""
    return set(_NAME.findall(_STRING.sub("", expression)))


def fast_rules() -> str:
    """Return the rules with short times, so that a test need not wait for minutes."""
    text = re.sub(r"(?m)^(\s+for:) \w+$", r"\1 0s", RULES.read_text())
    return re.sub(r"\[(?:5|10|15)m\]", "[2s]", text)


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return find_promtool()
    except ServiceMissing as missing:
        skip_or_fail(missing)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ("--database-url", f"sqlite:///{folder}/everbeat.db", "--port", str(port), "--auth", "off", "--migrate")
    with ServerProcess("serve", *flags, folder=folder) as process, httpx.Client(base_url=url, trust_env=False) as client:
        process.wait_ready(f"{url}/readyz", 40)
        yield client


@pytest.fixture(scope="module")
def receiver() -> Iterator[AlertReceiver]:
    made = AlertReceiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def prometheus(server: httpx.Client, receiver: AlertReceiver) -> Iterator[Prometheus]:
    target = server.base_url.netloc.decode()
    try:
        alertmanager = Alertmanager(receiver.url)
        made = Prometheus([target], fast_rules(), [f"127.0.0.1:{alertmanager.port}"])
    except ServiceMissing as missing:
        skip_or_fail(missing)
    with alertmanager, made:
        yield made


def kill_a_task(client: httpx.Client) -> None:
    """Submit a task, claim it, and fail it for good."""
    assert client.post("/v1/tasks", json={"type": "x", "queue": "doomed", "max_attempts": 1}).status_code in (200, 201, 202)
    claim = {"worker": "test", "queues": ["doomed"], "max": 1}
    (task,) = client.post("/v1/worker/claim", json=claim).json()["tasks"]
    failure = {"id": task["id"], "fence": task["fence"], "error": {"message": "no"}, "retryable": False}
    assert client.post("/v1/worker/fail", json={"worker": "test", "failures": [failure]}).json()["results"][0]["next"] == "dead"


def test_an_alert_of_a_real_server_arrives_at_the_webhook_and_ends(
    server: httpx.Client, prometheus: Prometheus, receiver: AlertReceiver
) -> None:
    wait_until(lambda: prometheus.query("everbeat_dead_letters_total"), 20, "the first scrape")
    assert receiver.statuses("EverbeatDeadLetters") == []
    kill_a_task(server)
    wait_until(lambda: "firing" in receiver.statuses("EverbeatDeadLetters"), 20, lambda: f"the alert: {receiver.alerts}")
    (alert,) = [one for one in receiver.alerts if one["labels"]["alertname"] == "EverbeatDeadLetters"][:1]
    assert alert["labels"]["severity"] == "ticket"
    assert (ROOT / alert["annotations"]["runbook_url"]).is_file()
    wait_until(lambda: "resolved" in receiver.statuses("EverbeatDeadLetters"), 20, lambda: f"its end: {receiver.alerts}")
    assert receiver.statuses("EverbeatMissingTicks") == receiver.statuses("EverbeatDoubledTicks") == []


def served_names(client: httpx.Client) -> set[str]:
    """Return the names of all series that the server exports, including those that have no value yet."""
    suffixes = {"counter": [""], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    types = re.findall(r"(?m)^# TYPE (\w+) (\w+)$", client.get("/metrics").text)
    return {name + suffix for name, kind in types for suffix in suffixes[kind]}


def dashboard_expressions() -> list[str]:
    dashboard = json.loads((OPS / "grafana-dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for variable, value in VARIABLES.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def test_every_query_of_the_dashboard_works_and_names_only_metrics_that_are_served(
    server: httpx.Client, prometheus: Prometheus
) -> None:
    wait_until(lambda: prometheus.query("everbeat_unowned_partitions"), 30, "a sample of the cluster")
    expressions, served = dashboard_expressions(), served_names(server)
    assert len(expressions) > 50
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for expression in expressions:
        assert "$" not in expression, expression
        assert names_in(expression) <= served | recorded | OTHER_METRICS, expression
        prometheus.query(expression)


def test_the_dashboard_shows_the_whole_state_of_the_cluster() -> None:
    shown = set().union(*map(names_in, dashboard_expressions()))
    sampled = {family.name for collector in (SampleCollector(), LevelCollector()) for family in collector.describe()}
    assert sampled <= shown


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_rule_names_only_metrics_that_are_served(rule: dict[str, Any], server: httpx.Client) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert names_in(rule["expr"]) <= served_names(server) | recorded | OTHER_METRICS


def test_the_rules_pass_their_tests(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "test", "rules", "prometheus-rules-test.yml"], cwd=OPS, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_is_tested_to_fire_and_to_end_and_has_a_runbook(rule: dict[str, Any]) -> None:
    name, tests = rule["alert"], yaml.safe_load((OPS / "prometheus-rules-test.yml").read_text())["tests"]
    (test,) = [one for one in tests if one["name"] == name]
    queries = test["promql_expr_test"]
    assert all(f'alertname="{name}"' in one["expr"] and 'alertstate="firing"' in one["expr"] for one in queries)
    assert [bool(one["exp_samples"]) for one in queries] == [False, True, False]
    runbook = ROOT / rule["annotations"]["runbook_url"]
    assert runbook.parent == RUNBOOKS
    text = runbook.read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"(?m)^## (\w+)$", text) == ["Meaning", "Impact", "Diagnose", "Fix"]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]


def test_every_runbook_belongs_to_an_alert_and_is_listed_in_the_guide() -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in RUNBOOKS.glob("*.md")}
    assert pages == {rule["annotations"]["runbook_url"] for rule in ALERTS}
    guide = (ROOT / "docs" / "howto" / "monitor.md").read_text()
    listed = re.findall(r"(?m)^\| \[(\w+)\]\(runbooks/([\w-]+)\.md\) \| (\w+) \|", guide)
    runbooks = [Path(rule["annotations"]["runbook_url"]).stem for rule in ALERTS]
    assert listed == [(rule["alert"], page, rule["labels"]["severity"]) for rule, page in zip(ALERTS, runbooks, strict=True)]

"""Traces from end to end: the spans that an app, a server, a worker and a webhook export to a receiver form one trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.processes import ServerProcess, free_port, wait_until

APP = """
import logging, sys
from everbeat import Everbeat
from everbeat.logs import TaskLogFilter

eb = Everbeat(name="shop")
handler = logging.StreamHandler(sys.stderr)
handler.addFilter(TaskLogFilter())
handler.setFormatter(logging.Formatter("line task=%(task)s schedule=%(schedule)s trace=%(trace)s %(message)s"))
logging.getLogger("shop").addHandler(handler)

@eb.task
async def work(fails: bool = False):
    logging.getLogger("shop").warning("working")
    from opentelemetry import trace
    with trace.get_tracer("shop").start_as_current_span("query"):
        pass
    if fails:
        raise ValueError("no")

@eb.task
def work_in_thread():
    logging.getLogger("shop").warning("working in a thread")
"""

SUBMIT = """
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
provider = TracerProvider(resource=Resource.create({"service.name": "web"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
from shop import eb, work
with trace.get_tracer("web").start_as_current_span("checkout"):
    print(work.submit().id)
"""


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


class Site:
    def __init__(self, folder: Path, receiver: OtlpReceiver) -> None:
        (folder / "shop.py").write_text(APP)
        self.folder, self.receiver = folder, receiver
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        export = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        self.env = {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "EVERBEAT_URL": self.url, **export}
        database = f"sqlite:///{folder}/everbeat.db"
        options = ("--port", str(port), "--database-url", database, "--otlp-endpoint", receiver.endpoint)
        self.server = ServerProcess("dev", *options, folder=folder, env=export, name="server")
        self.worker = ServerProcess("worker", "shop:eb", folder=folder, env=self.env, name="worker")
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=10)

    def __enter__(self) -> Site:
        self.server.start()
        self.server.wait_ready(f"{self.url}/readyz", 30)
        self.worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.kill9()
        self.server.kill9()
        self.client.close()

    def submit(self, **task: Any) -> str:
        response = self.client.post("/v1/tasks", json=task)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    def spans_of(self, task_id: str, *names: str) -> dict[str, ReceivedSpan]:
        """Wait for spans with these names in the trace of a task, and return all spans of this trace by name."""

        def found() -> dict[str, ReceivedSpan]:
            spans = self.receiver.spans()
            traces = {span.trace_id for span in spans if span.attributes.get("messaging.message.id") == task_id}
            return {span.name: span for span in spans if span.trace_id in traces}

        wait_until(lambda: set(names) <= found().keys(), 20, lambda: f"{sorted(found())} {self.worker.logs()}")
        return found()


def test_the_spans_of_app_server_worker_and_webhook_form_one_trace(tmp_path: Path, receiver: OtlpReceiver) -> None:
    with Site(tmp_path, receiver) as site:
        run = subprocess.run(
            [sys.executable, "-c", SUBMIT], env=os.environ | site.env, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 0, run.stderr
        task_id = run.stdout.strip()
        spans = site.spans_of(task_id, "checkout", "submit work", "claim work", "run work", "query", "complete work")
        parents = {span.span_id: span.name for span in spans.values()}
        assert {name: parents.get(span.parent_span_id) for name, span in spans.items()} == {
            "checkout": None,
            "submit work": "checkout",
            "claim work": "submit work",
            "run work": "submit work",
            "query": "run work",
            "complete work": "submit work",
        }
        assert {span.service for span in spans.values()} == {"web", "everbeat", "everbeat-worker"}
        assert not any(span.is_error for span in spans.values())
        assert f"line task={task_id} schedule= trace={spans['checkout'].trace_id} working" in site.worker.logs()

        failed = site.spans_of(site.submit(type="work", payload={"fails": True}, max_attempts=1), "run work", "dead work")
        assert failed["run work"].is_error
        assert failed["dead work"].is_error
        threaded = site.submit(type="work_in_thread")
        trace_id = site.spans_of(threaded, "run work_in_thread", "complete work_in_thread")["run work_in_thread"].trace_id
        assert f"line task={threaded} schedule= trace={trace_id} working in a thread" in site.worker.logs()
        assert "task_failed" in site.worker.logs()
        schedule = {"name": "often", "every_seconds": 1, "target": {"kind": "worker", "type": "work"}}
        assert site.client.post("/v1/schedules", json=schedule).status_code == 201
        wait_until(lambda: any(span.name == "fire work" for span in receiver.spans()), 20)
        fired = next(span for span in receiver.spans() if span.name == "fire work")
        spans = site.spans_of(fired.attributes["messaging.message.id"], "fire work", "run work", "complete work")
        assert spans["run work"].parent_span_id == fired.span_id
        assert spans["run work"].attributes["everbeat.schedule"] == "often"


def test_a_webhook_gets_the_context_of_its_delivery(tmp_path: Path, receiver: OtlpReceiver) -> None:
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.headers["traceparent"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    destination = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=destination.serve_forever, daemon=True).start()
    try:
        with Site(tmp_path, receiver) as site:
            target = {"kind": "http", "url": f"http://127.0.0.1:{destination.server_port}/"}
            task_id = site.submit(type="hook", target=target, payload=json.loads("{}"))
            spans = site.spans_of(task_id, "submit hook", "claim hook", "deliver hook", "complete hook")
            delivery = spans["deliver hook"]
            assert received == [f"00-{delivery.trace_id}-{delivery.span_id}-01"]
            assert delivery.attributes["everbeat.target.kind"] == "http"
            assert delivery.end_ns > delivery.start_ns
    finally:
        destination.shutdown()
        destination.server_close()

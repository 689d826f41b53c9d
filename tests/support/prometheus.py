"""A private Prometheus and a private Alertmanager (Debian packages `prometheus` and `prometheus-alertmanager`)."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests.support.local_server import LocalServer, exchange, find_program

HOW_TO_INSTALL = "run `make services` as root"


def find_promtool() -> str:
    return find_program("promtool", HOW_TO_INSTALL)


def get_json(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as response:
        return json.load(response)


class Alertmanager(LocalServer):
    """Sends every alert to a webhook at once, and also when it has ended."""

    name = "alertmanager"

    def __init__(self, webhook: str) -> None:
        super().__init__()
        self._webhook = webhook

    @classmethod
    def find(cls) -> str:
        return find_program("prometheus-alertmanager", HOW_TO_INSTALL)

    def prepare(self) -> None:
        config = {
            "route": {
                "receiver": "test",
                "group_by": ["alertname"],
                "group_wait": "10ms",
                "group_interval": "200ms",
                "repeat_interval": "1h",
            },
            "receivers": [{"name": "test", "webhook_configs": [{"url": self._webhook, "send_resolved": True}]}],
        }
        (self.folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML

    def command(self) -> Sequence[str]:
        flags = ("--config.file=config.yml", f"--storage.path={self.folder / 'data'}", "--cluster.listen-address=")
        return [self._program, *flags, f"--web.listen-address=127.0.0.1:{self.port}"]

    def is_ready(self) -> bool:
        return b"200 OK" in exchange(self.port, b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


class Prometheus(LocalServer):
    """Scrapes the targets of the job `everbeat` and evaluates rules, both every `interval`."""

    name = "prometheus"

    def __init__(
        self, targets: Sequence[str], rules: str = "", alertmanagers: Sequence[str] = (), interval: str = "250ms"
    ) -> None:
        super().__init__()
        self._targets = list(targets)
        self._rules = rules
        self._alertmanagers = list(alertmanagers)
        self._interval = interval

    @classmethod
    def find(cls) -> str:
        return find_program("prometheus", HOW_TO_INSTALL)

    def prepare(self) -> None:
        config = {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), self._interval),
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "everbeat", "static_configs": [{"targets": self._targets}]}],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": self._alertmanagers}]}]},
        }
        (self.folder / "config.yml").write_text(json.dumps(config))
        (self.folder / "rules.yml").write_text(self._rules or "groups: []\n")

    def command(self) -> Sequence[str]:
        flags = ("--config.file=config.yml", f"--storage.tsdb.path={self.folder / 'data'}", "--log.level=warn")
        return [self._program, *flags, f"--web.listen-address=127.0.0.1:{self.port}"]

    def is_ready(self) -> bool:
        return b"200 OK" in exchange(self.port, b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    def query(self, expression: str) -> list[Any]:
        """Return the result of an instant query. An invalid one raises HTTPError."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(expression)}"
        result: list[Any] = get_json(url)["data"]["result"]
        return result

    def names(self) -> set[str]:
        """Return the names of all series."""
        return set(get_json(f"http://127.0.0.1:{self.port}/api/v1/label/__name__/values")["data"])

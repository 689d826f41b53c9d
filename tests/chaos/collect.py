"""Saves what the public API says at the end of a run, page by page, with the number of lines as the last file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

_PAGE = 1000
_TRIES = 30
_UNFINISHED = ("held", "scheduled", "ready", "running")


class Collector:
    def __init__(self, bases: list[str]) -> None:
        self._bases = bases
        self._client = httpx.Client(trust_env=False, timeout=60.0)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **params: Any) -> Any:
        for number in range(_TRIES):
            try:
                response = self._client.get(f"{self._bases[number % len(self._bases)]}{path}", params=params)
                response.raise_for_status()
                return response.json()
            except httpx.HTTPError:
                time.sleep(0.5)
        raise RuntimeError(f"{path}: no answer after {_TRIES} tries")

    def pages(self, path: str, **params: Any) -> Iterator[Any]:
        cursor: dict[str, str] = {}
        while True:
            page = self.get(path, limit=_PAGE, **params, **cursor)
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            cursor = {"cursor": page["next_cursor"]}

    def wait_until_idle(self, window: dict[str, str], deadline_seconds: float) -> bool:
        """Wait until all schedules and tasks have finished and no tick is missing. Returns whether that happened."""
        give_up_at = time.monotonic() + deadline_seconds
        while time.monotonic() < give_up_at:
            audit = self.get("/v1/audit", limit=1, **window)
            left = sum(len(self.get("/v1/tasks", state=state, limit=1)["items"]) for state in _UNFINISHED)
            left += len(self.get("/v1/schedules", status="active", limit=1)["items"])
            if not audit["missing"] and not left:
                return True
            time.sleep(0.5)
        return False

    def save(self, folder: Path, window: dict[str, str]) -> None:
        folder.mkdir()
        schedules = list(self.pages("/v1/schedules"))
        tasks = list(self.pages("/v1/tasks"))
        repeated = [task["id"] for task in tasks if task["attempt"] > 1]
        saved = {
            "schedules": schedules,
            "ticks": [
                {"schedule": one["name"], **tick}
                for one in schedules
                for tick in self.pages(f"/v1/schedules/{one['name']}/ticks", **window)
            ],
            "tasks": tasks,
            "attempts": [{"task": id_, **one} for id_ in repeated for one in self.pages(f"/v1/tasks/{id_}/attempts")],
        }
        for name, items in saved.items():
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        (folder / "audit.json").write_text(json.dumps(self._audit(window)))
        (folder / "complete.json").write_text(json.dumps({name: len(items) for name, items in saved.items()}))

    def _audit(self, window: dict[str, str]) -> Any:
        """Return the audit with all its schedules on one page."""
        first = page = self.get("/v1/audit", limit=_PAGE, **window)
        while page["next_cursor"] is not None:
            page = self.get("/v1/audit", limit=_PAGE, cursor=page["next_cursor"], **window)
            first["schedules"] += page["schedules"]
        return first


def window_of(from_: float, to: float) -> dict[str, str]:
    return {"from": datetime.fromtimestamp(from_, UTC).isoformat(), "to": datetime.fromtimestamp(to, UTC).isoformat()}

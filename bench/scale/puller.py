"""A worker that only claims and completes, and records how long each claim took. `python -m bench.scale.puller PORT FILE`."""

from __future__ import annotations

import http.client
import json
import sys
import time
from typing import Any

from bench.scale.data import QUEUE

_IDLE_SECONDS = 0.2
_SMALL, _LARGE = 100, 1000


def main() -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    limit = _SMALL
    with open(sys.argv[2], "a", buffering=1) as file:
        while True:
            began_at = time.perf_counter()
            claim = {"worker": "puller", "queues": [QUEUE], "max": limit, "wait_seconds": 0, "lease_seconds": 60}
            tasks = _post(connection, "/v1/worker/claim", claim)["tasks"]
            file.write(f"{time.time()} {(time.perf_counter() - began_at) * 1000} {len(tasks)}\n")
            if tasks:
                results = [{"id": task["id"], "fence": task["fence"]} for task in tasks]
                _post(connection, "/v1/worker/complete", {"worker": "puller", "results": results})
            if len(tasks) < limit:
                time.sleep(_IDLE_SECONDS)
            # A backlog is worked off in large batches.
            limit = _LARGE if len(tasks) == limit else _SMALL


def _post(connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {text[:500]!r}")
    return json.loads(text)


if __name__ == "__main__":
    main()

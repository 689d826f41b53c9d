"""Reports the tasks that Everbeat has sent to a Celery application: that they run, their progress, their retries and their end.

One line installs it, in the module that creates the application:

    everbeat.contrib.celery.install(app)

It connects to the signals of Celery. A message of a target with the mode `callback` carries the callback URL of its attempt and
a token that is valid for this attempt only; messages without them are left alone. When the task begins, a thread sends
heartbeats until it ends. If the worker is killed, the heartbeats end, the lease expires, and Everbeat sends the task again. A
retry by Celery is reported as progress, and the attempt continues until Celery has no retries left.

A report that Everbeat does not get is repeated for `report_seconds`, which delays the next task of this process by as much.
Then it is given up: the lease expires, and the task is sent again, so handlers have to be idempotent.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit, urlunsplit

URL_HEADER, TOKEN_HEADER = "everbeat-callback-url", "everbeat-callback-token"
DEFAULT_LEASE_SECONDS = 60.0
DEFAULT_REPORT_SECONDS = 60.0
REQUEST_SECONDS = 10.0
SECOND_HEARTBEAT_SECONDS = 2.0
CANCELLED_KIND = "cancelled"
MAX_TRACE_CHARACTERS = 20_000
# While the message of a retry waits in Celery's queue, there are no heartbeats. Only the timeout of the attempt ends it.
WAITING_LEASE_SECONDS = 7 * 86_400.0

_log = logging.getLogger("everbeat.contrib.celery")


@dataclass(eq=False)
class CeleryAttempt:
    """An attempt that runs in this process. `status`: what the last heartbeat returned: `ok`, `stale` or `cancel`."""

    task_id: str
    url: str
    token: str
    progress: dict[str, Any] | None = None
    status: str = "ok"
    has_seen_cancel: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class CeleryReporter:
    """Reports to Everbeat. `url`: the address of Everbeat, if workers reach it by another one than in the callback URLs."""

    def __init__(
        self,
        *,
        url: str | None = None,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        report_seconds: float = DEFAULT_REPORT_SECONDS,
    ) -> None:
        self._base = url
        self._lease_seconds = lease_seconds
        self._report_seconds = report_seconds
        self._running: dict[str, CeleryAttempt] = {}

    # For handlers

    def progress(self, fraction: float, message: str = "") -> None:
        """Report the progress of the current task, with the next heartbeat. Does nothing for a task of another origin."""
        if attempt := self._current():
            attempt.progress = {"fraction": fraction, "message": message}

    def is_cancelled(self) -> bool:
        """Whether the current task was cancelled, or its lease was lost. If so, return: the task is reported as cancelled."""
        attempt = self._current()
        if attempt is None or attempt.status == "ok":
            return False
        attempt.has_seen_cancel = True
        return True

    def _current(self) -> CeleryAttempt | None:
        from celery import current_task

        return self._running.get(str(current_task.request.id)) if current_task else None

    # Receivers of Celery's signals

    def on_prerun(self, task_id: str, task: Any, **_: Any) -> None:
        attempt = self._attempt_of(task.request)
        if attempt is None:
            return
        self._running[task_id] = attempt
        # Before the handler begins, so that its death is noticed from here on, and it can ask whether the attempt is stale.
        # Everbeat may record after it that the task was accepted, with a longer lease: the second one, soon, corrects that.
        delay = min(self._heartbeat(attempt), SECOND_HEARTBEAT_SECONDS)
        if attempt.status != "stale":
            heartbeats = threading.Thread(
                target=self._send_heartbeats, args=(attempt, delay), name="everbeat-heartbeats", daemon=True
            )
            heartbeats.start()

    def on_postrun(self, task_id: str, **_: Any) -> None:
        if attempt := self._running.pop(task_id, None):
            attempt.ended.set()

    def on_success(self, sender: Any, result: Any, **_: Any) -> None:
        if (attempt := self._ending(sender.request)) is None:
            return
        if attempt.has_seen_cancel:
            self._report(attempt, "fail", {"error": {"message": "the Celery task has stopped", "kind": CANCELLED_KIND}})
        else:
            self._report(attempt, "complete", {"result": as_json(result)})

    def on_retry(self, sender: Any, request: Any, reason: Any, **_: Any) -> None:
        if attempt := self._ending(request):
            number = (request.retries or 0) + 1
            message = f"Celery retry {number} after {_cause_of(reason)}"[:500]
            progress = {"fraction": 0.0, "message": message}
            self._report(attempt, "heartbeat", {"progress": progress, "lease_seconds": WAITING_LEASE_SECONDS})

    def on_failure(self, sender: Any, exception: Any, einfo: Any = None, **_: Any) -> None:
        if attempt := self._ending(sender.request):
            self._report(attempt, "fail", {"error": _error_of(exception, einfo)})

    def on_revoked(self, request: Any, terminated: bool = False, expired: bool = False, **_: Any) -> None:
        if attempt := self._ending(request):
            why = "it expired" if expired else ("it was terminated" if terminated else "it was revoked")
            error = {"message": f"the Celery task did not run: {why}", "kind": "revoked"}
            self._report(attempt, "fail", {"error": error, "retryable": False})

    def _ending(self, request: Any) -> CeleryAttempt | None:
        """Return the attempt of a request, without further heartbeats."""
        attempt = self._running.get(str(request.id)) or self._attempt_of(request)
        if attempt is not None:
            attempt.ended.set()
        return attempt

    def _attempt_of(self, request: Any) -> CeleryAttempt | None:
        headers: Mapping[str, Any] = getattr(request, "headers", None) or getattr(request, "request_dict", None) or {}
        url, token = headers.get(URL_HEADER), headers.get(TOKEN_HEADER)
        if not url or not token:
            return None
        return CeleryAttempt(str(request.id), self._address(str(url)), str(token))

    def _address(self, url: str) -> str:
        if self._base is None:
            return url
        base = urlsplit(self._base)
        return urlunsplit(urlsplit(url)._replace(scheme=base.scheme, netloc=base.netloc))

    # Requests

    def _send_heartbeats(self, attempt: CeleryAttempt, delay: float) -> None:
        while not attempt.ended.wait(delay):
            delay = self._heartbeat(attempt)
            if attempt.status == "stale":
                return

    def _heartbeat(self, attempt: CeleryAttempt) -> float:
        """Send one heartbeat, and return after what time the next one is due."""
        body: dict[str, Any] = {"lease_seconds": self._lease_seconds}
        if attempt.progress is not None:
            body["progress"] = attempt.progress
        try:
            attempt.status = str(_post(attempt, "heartbeat", body).get("status", "ok"))
        except Exception as error:
            if not _is_final(error):
                return min(self._lease_seconds / 3, 2.0)
            attempt.status = "stale"
        return self._lease_seconds / 3

    def _report(self, attempt: CeleryAttempt, verb: str, body: dict[str, Any]) -> None:
        """Send a report until Everbeat has answered, for at most `report_seconds`."""
        deadline = time.monotonic() + self._report_seconds
        delay = 0.2
        while True:
            try:
                _post(attempt, verb, body)
                return
            except Exception as error:
                if _is_final(error) or time.monotonic() + delay > deadline:
                    _log.warning("everbeat: the %s report of task %s failed: %s", verb, attempt.task_id, error)
                    return
            time.sleep(random.uniform(delay / 2, delay))
            delay = min(delay * 2, 5.0)


def install(app: Any, **options: Any) -> CeleryReporter:
    """Report the tasks of this Celery application that Everbeat has sent. The options are those of CeleryReporter."""
    from celery import signals

    reporter = CeleryReporter(**options)
    receivers = {
        signals.task_prerun: reporter.on_prerun,
        signals.task_postrun: reporter.on_postrun,
        signals.task_success: reporter.on_success,
        signals.task_retry: reporter.on_retry,
        signals.task_failure: reporter.on_failure,
        signals.task_revoked: reporter.on_revoked,
    }
    for signal, receiver in receivers.items():
        # With this id, a second call for the same application replaces nothing and adds nothing.
        signal.connect(receiver, weak=False, dispatch_uid=f"everbeat-{app.main}")
    return reporter


def as_json(value: Any) -> Any:
    """Return a result as JSON data. What JSON cannot represent becomes text."""
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return str(value)[:10_000]


def _cause_of(reason: Any) -> str:
    cause = getattr(reason, "exc", None)
    return f"{type(cause).__name__}: {cause}" if isinstance(cause, BaseException) else str(reason)


def _error_of(exception: Any, einfo: Any) -> dict[str, Any]:
    trace = str(getattr(einfo, "traceback", "") or "")
    if not trace and isinstance(exception, BaseException):
        trace = "".join(traceback.format_exception(exception))
    error = {"message": (str(exception) or type(exception).__name__)[:10_000], "kind": type(exception).__name__[:200]}
    return {**error, "trace": trace[-MAX_TRACE_CHARACTERS:]} if trace else error


def _post(attempt: CeleryAttempt, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{attempt.url}/{verb}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {attempt.token}", "Content-Type": "application/json", "Accept": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
        found = json.loads(response.read() or b"{}")
        return found if isinstance(found, dict) else {}


def _is_final(error: Exception) -> bool:
    """Whether a repeated request would fail as well: Everbeat has answered that it does not accept it."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return error.code < 500 and error.code not in (408, 429)
    return not isinstance(error, (OSError, HTTPException, ValueError))

"""What schemathesis must know of this API: which 422s no schema could have foretold, and how not to wait for long polls.

Loaded by schemathesis itself (SCHEMATHESIS_HOOKS), in a process of its own.
"""

from __future__ import annotations

import re
from typing import Any

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

# A value that fits its schema and is refused all the same: only for these, each for a reason that a schema cannot state.
EXPLAINED = {
    r"Idempotency-Key": "was used before with another request",
    r"(.*\.)?idempotency_key": "was used before with another task",
    r"cursor": "is opaque: only the one that the list gave leads on",
    r"(.*\.)?target\.broker": "must be the name of a connection configured on the server",
    r"(.*\.)?target\.headers": "some names are reserved for the connection and the signature",
    r"(.*\.)?target\.url": "is judged as a whole: host, port and escapes",
    r"(.*\.)?(target\.type|target\.queue|queue)": "must agree with type and queue beside the target",
    r"(.*\.)?calendars\.(only|exclude)": "must exist",
    r"(.*\.)?(cron|rrule|timezone|every_seconds)": "has a grammar, or names something of the time zone database",
    r"(.*\.)?anchor": "goes only with some triggers",
    r"(.*\.)?(at|run_at|after|from|to|starts_at|ends_at)": "is bounded in years, and held against the clock or another time",
    r"(.*\.)?delay_seconds": "excludes run_at",
    r"(schedules\[\d+\]\.)?name": "is reserved, is there twice, or differs from the name in the path",
    r"(.*\.)?expires_at": "must be in the future",
    r"(dates|yearly|intervals|ics)(\[\d+\])?(\..*)?": "are dates that exist, and files of a grammar",
    r"scopes(\[\d+\])?": "must go together, and with the kind of key",
}


def is_explained(problem: dict[str, Any]) -> bool:
    errors = problem.get("errors") or [{"field": ""}]
    return all(any(re.fullmatch(field, error["field"]) for field in EXPLAINED) for error in errors)


@schemathesis.check
def accepted_or_explained(ctx: Any, response: Any, case: Any) -> bool | None:
    """As positive_data_acceptance, but for the values above."""
    try:
        return positive_data_acceptance(ctx, response, case)
    except AssertionError:
        if response.status_code == 413 or (response.status_code == 422 and is_explained(response.json())):
            return None
        raise


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """A claim may wait for half a minute; here nobody brings it anything."""
    body = case.body
    if case.path == "/v1/worker/claim" and isinstance(body, dict):
        waits = body.get("wait_seconds")
        if isinstance(waits, int | float) and not isinstance(waits, bool) and 0 < waits <= 30:
            body["wait_seconds"] = 0.01

"""Adapts schemathesis to this API: it defines which 422 responses a schema cannot predict, and shortens long polls.

schemathesis loads this file (SCHEMATHESIS_HOOKS) in a separate process.
"""

from __future__ import annotations

import re
from typing import Any

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

# Values that match their schema and are still refused. Each has a reason that a schema cannot express.
UNPREDICTABLE = {
    r"Idempotency-Key": "was used before with another request",
    r"(.*\.)?idempotency_key": "was used before with another task",
    r"cursor": "is opaque: only a cursor returned by the list is valid",
    r"(.*\.)?target\.broker": "must be the name of a connection configured on the server",
    r"(.*\.)?target\.(name|options)": "must be a kind, with its options, of a package that the server has installed",
    r"(.*\.)?target\.\w+(\[\d+\])?": "of a broker are checked by the rules of its protocol",
    r"filter(\.all)?": "must not be empty without all, and all excludes other conditions",
    r"until": "must be in the future",
    r"(.*\.)?target\.headers": "some names are reserved for the connection and the signature",
    r"(.*\.)?target\.url": "is validated as a whole: host, port and escapes",
    r"when\.(seconds|times_usual|timezone)": "one of the first two is required, and zones are those of the tz database",
    r"quiet(\..*)?": "are times of a zone, and windows that end after they begin",
    r"notify(\[\d+\](\..*)?)?": "are targets, as above",
    r"(.*\.)?hooks\.on_(success|failure|missed)(\[\d+\](\..*)?)?": "are targets, as above, and on_missed is for schedules only",
    r"url|headers": "of an endpoint are those of a target",
    r"(.*\.)?(target\.type|target\.queue|queue)": "must match the type and queue outside the target",
    r"(.*\.)?calendars\.(only|exclude)": "must exist",
    r"(.*\.)?(cron|rrule|timezone|every_seconds)": "has a grammar, or must be in the time zone database",
    r"(.*\.)?anchor": "is allowed only with some triggers",
    r"(.*\.)?(at|run_at|after|from|to|starts_at|ends_at)": "is bounded, and compared with the clock or another time",
    r"(.*\.)?delay_seconds": "excludes run_at",
    r"(schedules\[\d+\]\.)?name": "is reserved, duplicate, or differs from the name in the path",
    r"(.*\.)?expires_at": "must be in the future",
    r"(dates|yearly|intervals|ics)(\[\d+\])?(\..*)?": "must be existing dates and valid files",
    r"scopes(\[\d+\])?": "must be compatible with each other and with the type of key",
}


def is_unpredictable(problem: dict[str, Any]) -> bool:
    errors = problem.get("errors") or [{"field": ""}]
    return all(any(re.fullmatch(field, error["field"]) for field in UNPREDICTABLE) for error in errors)


@schemathesis.check
def accepted_or_unpredictable(ctx: Any, response: Any, case: Any) -> bool | None:
    """Like positive_data_acceptance, except for the values above."""
    try:
        return positive_data_acceptance(ctx, response, case)
    except AssertionError:
        if response.status_code == 413 or (response.status_code == 422 and is_unpredictable(response.json())):
            return None
        raise


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Shorten the wait of a claim, which otherwise takes up to half a minute, because no task is submitted."""
    body = case.body
    if case.path == "/v1/worker/claim" and isinstance(body, dict):
        waits = body.get("wait_seconds")
        if isinstance(waits, int | float) and not isinstance(waits, bool) and 0 < waits <= 30:
            body["wait_seconds"] = 0.01

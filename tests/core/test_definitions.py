"""Definitions: conversion to a spec or to a list of all errors, and of a spec back to a definition."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.definitions import (
    MAX_DEPTH,
    MAX_ROW_PAYLOAD_BYTES,
    apply_patch,
    convert,
    definition_from_spec,
    number,
    parse_definition,
    rfc3339,
)
from everbeat.core.errors import InvalidInput, TooLarge
from everbeat.core.protocol import LeaseReleaseRequest
from everbeat.core.responses import schedule_response
from everbeat.core.rules import DstFold, DstGap, TriggerKind
from everbeat.core.schedules import Overlap, Spec, same_spec
from tests.factories import definition, make_schedule


def error_fields(data: Any) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        parse_definition(data)
    return [error.field for error in refused.value.errors]


def test_a_minimal_definition_gets_the_defaults() -> None:
    spec = parse_definition(definition())
    assert (spec.rule.kind, spec.rule.expression, spec.rule.timezone) == (TriggerKind.CRON, "* * * * *", "UTC")
    assert (spec.overlap, spec.concurrency, spec.payload, spec.priority, spec.enabled) == (Overlap.SKIP, 1, b"{}", 100, True)


def test_a_full_definition_is_returned_unchanged() -> None:
    data = definition(
        "full",
        description="two\nlines",
        rrule="FREQ=DAILY",
        anchor="2026-01-01T08:00:00.000000Z",
        timezone="Europe/Berlin",
        payload={"a": [1, 2.5, None, "ü"]},
        overlap="allow",
        max_concurrent=4,
        catch_up="all",
        misfire_grace_seconds=90,
        jitter_seconds=1.5,
        dst={"gap": "skip", "fold": "both"},
        hooks={"on_success": [{"kind": "worker", "type": "a", "queue": "b"}], "on_failure": [], "on_missed": []},
        calendars={"exclude": ["holidays"], "only": ["office"]},
        starts_at="2026-01-01T00:00:00.000000Z",
        ends_at="2027-01-01T00:00:00.000000Z",
        priority=5,
        max_attempts=9,
        retry={"kind": "linear", "base_seconds": 2, "factor": 1, "max_seconds": 60, "jitter": False},
        timeout_seconds=30,
        labels={"team": "ops"},
        enabled=False,
    )
    data["target"] = {"kind": "worker", "type": "work", "queue": "slow"}
    spec = parse_definition(data)
    assert definition_from_spec(spec) == data
    assert parse_definition(definition_from_spec(spec)) == spec
    assert (spec.rule.gap, spec.rule.fold) == (DstGap.SKIP, DstFold.BOTH)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": "* * * * *", "every_seconds": 5}, "cron"),
        ({"cron": None}, "cron"),
        ({"cron": "* * * * *", "anchor": "2026-01-01T00:00:00Z"}, "anchor"),
        ({"at": "2026-01-01T00:00:00"}, "at"),
        ({"at": "0001-01-01T00:00:00+14:00"}, "at"),
        ({"name": "bad name"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": 5}, "name"),
        ({"unknown": 1}, "unknown"),
        ({"target": {"kind": "worker"}}, "target.type"),
        ({"target": {"kind": "worker", "type": "t", "url": "x"}}, "target.url"),
        ({"target": {"kind": "unknown"}}, "target.kind"),
        ({"overlap": "sometimes"}, "overlap"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"priority": 1001}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"misfire_grace_seconds": -1}, "misfire_grace_seconds"),
        ({"jitter_seconds": 86_401}, "jitter_seconds"),
        ({"retry": {"factor": 0.5}}, "retry.factor"),
        ({"retry": {"base_seconds": -1}}, "retry.base_seconds"),
        ({"retry": {"max_seconds": 1e12}}, "retry.max_seconds"),
        ({"retry": {"kind": "unknown"}}, "retry.kind"),
        ({"description": "x" * 2001}, "description"),
        ({"description": "control\x07"}, "description"),
        ({"description": "\ud800"}, "description"),
        ({"labels": {f"l{n}": "v" for n in range(33)}}, "labels"),
        ({"labels": {"bad key": "v"}}, "labels.'bad key'"),
        ({"starts_at": "2026-01-02T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z"}, "ends_at"),
        ({"calendars": {"exclude": ["x"] * 17}}, "calendars.exclude"),
        ({"dst": {"gap": "jump"}}, "dst.gap"),
        ({"payload": {"a": "\ud800"}}, "payload"),
    ],
)
def test_the_error_names_the_invalid_field(fields: dict[str, Any], field: str) -> None:
    assert error_fields({**definition(), **fields} if "cron" in fields else definition(**fields)) == [field]


@pytest.mark.parametrize("data", [None, [], "text", 5])
def test_a_definition_that_is_not_an_object_is_refused(data: Any) -> None:
    assert error_fields(data) == ["body"]


def test_all_errors_are_reported_together() -> None:
    data = definition("bad name", retry={"factor": 0}, target={"kind": "http", "url": "x"}, every_seconds=5, cron="x")
    assert set(error_fields(data)) == {"name", "retry.factor", "target.url", "cron"}


def test_missing_fields_are_named() -> None:
    assert error_fields({"cron": "* * * * *", "target": {"kind": "worker", "type": "t"}}) == ["name"]


def test_payloads_are_limited_in_size_and_depth() -> None:
    nested: Any = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert error_fields(definition(payload=nested)) == ["payload"]
    parse_definition(definition(payload=nested[0]))
    parse_definition(definition(payload="x" * (MAX_ROW_PAYLOAD_BYTES - 2)))
    with pytest.raises(TooLarge):
        parse_definition(definition(payload="x" * (MAX_ROW_PAYLOAD_BYTES - 1)))


@pytest.mark.parametrize(
    ("given", "text"), [(5, "5"), (0.5, "0.5"), (100, "100"), (1.25, "1.25"), (3600.0, "3600"), (1e6, "1000000")]
)
def test_an_interval_is_stored_as_plain_text(given: float, text: str) -> None:
    assert parse_definition(definition(every_seconds=given)).rule.expression == text


def test_times_are_stored_in_utc() -> None:
    spec = parse_definition(definition(at="2026-03-02T13:00:00+01:00"))
    assert spec.rule.expression == "2026-03-02T12:00:00.000000Z"


def test_a_patch_merges_nested_objects_and_replaces_other_fields() -> None:
    spec = parse_definition(definition(payload={"a": 1}, labels={"x": "y"}, retry={"factor": 3}, dst={"gap": "skip"}))
    merged = apply_patch(spec, {"payload": {"b": 2}, "labels": {}, "retry": {"base_seconds": 9}, "dst": {"fold": "both"}})
    after = parse_definition(merged)
    assert (after.payload, after.labels) == (b'{"b":2}', {})
    assert (after.retry.factor, after.retry.base_seconds) == (3, 9)
    assert (after.rule.gap, after.rule.fold) == (DstGap.SKIP, DstFold.BOTH)


def test_an_empty_patch_changes_nothing() -> None:
    spec = parse_definition(definition(every_seconds=90, overlap="allow"))
    assert same_spec(parse_definition(apply_patch(spec, {})), spec)


@pytest.mark.parametrize("patch", [None, [], 5])
def test_a_patch_that_is_not_an_object_is_refused(patch: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a JSON object"):
        apply_patch(parse_definition(definition()), patch)


def test_the_order_of_keys_in_a_payload_does_not_matter() -> None:
    one, two = (parse_definition(definition(payload=payload)) for payload in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert one != two
    assert same_spec(one, two)
    assert not same_spec(one, parse_definition(definition(payload={"a": 1, "b": 3})))


def test_a_response_has_times_with_microseconds_and_z() -> None:
    response = schedule_response(make_schedule())
    assert response.next_tick_at == "2026-03-02T12:00:00.000000Z"
    assert response.last_tick_at is None
    assert rfc3339(datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)) == "2026-01-01T12:00:00.000005Z"


def test_whole_numbers_have_no_decimal_point() -> None:
    assert (number(5.0), number(5.5)) == (5, 5.5)
    assert isinstance(number(5.0), int)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(JSON)
def test_any_json_payload_is_returned_unchanged_or_refused_with_its_field(payload: Any) -> None:
    found = outcome(definition(payload=payload))
    if isinstance(found, InvalidInput):
        assert [error.field for error in found.errors] == ["payload"]
    else:
        assert definition_from_spec(found)["payload"] == payload


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*definition_from_spec(make_schedule().spec), "unknown"]), JSON))
def test_any_json_definition_is_accepted_or_refused_with_fields(data: dict[str, Any]) -> None:
    found = outcome({**definition(), **data})
    if isinstance(found, InvalidInput):
        assert found.errors
        assert all(error.field and error.message for error in found.errors)


def outcome(data: Any) -> Spec | InvalidInput:
    try:
        return parse_definition(data)
    except InvalidInput as refused:
        return refused


# Whole numbers


def test_a_whole_number_may_have_a_fraction_of_zero() -> None:
    leases = [{"id": "01a1e231-932d-71cb-8dab-e37075a3e37c", "fence": fence} for fence in (1.0, 2, 3.0)]
    release = convert({"worker": "w", "leases": leases}, LeaseReleaseRequest)
    assert [lease.fence for lease in release.leases] == [1, 2, 3]
    spec = parse_definition(definition(priority=7.0, max_concurrent=2.0, payload={"kept": 1.0}))
    assert (spec.priority, spec.max_concurrent, spec.payload) == (7, 2, b'{"kept":1.0}')


@pytest.mark.parametrize("fence", [1.5, "1", True, 1e300])
def test_other_numbers_are_refused(fence: Any) -> None:
    with pytest.raises(InvalidInput):
        convert(
            {"worker": "w", "leases": [{"id": "01a1e231-932d-71cb-8dab-e37075a3e37c", "fence": fence}]}, LeaseReleaseRequest
        )


@pytest.mark.parametrize(
    ("expression", "seconds"),
    [
        ("@every 1h30m", "5400"),
        ("@EVERY  90s", "90"),
        ("@every 1.5h", "5400"),
        ("@every 1m1.5s", "61.5"),
        ("@every 1500ms", "1.5"),
        ("@every 100s", "100"),
    ],
)
def test_every_in_a_cron_expression_is_an_interval(expression: str, seconds: str) -> None:
    spec = parse_definition(definition(cron=expression, anchor="2026-01-01T00:00:00Z"))
    assert (spec.rule.kind, spec.rule.expression) == (TriggerKind.EVERY, seconds)
    returned = definition_from_spec(spec)
    assert "cron" not in returned
    assert returned["every_seconds"] == float(seconds)
    assert parse_definition(returned) == spec


def test_every_keeps_the_zone_of_its_prefix_for_calendars() -> None:
    assert parse_definition(definition(cron="TZ=Asia/Tokyo @every 1h")).rule.timezone == "Asia/Tokyo"


@pytest.mark.parametrize(
    "expression", ["@every", "@every 1d", "@every 1h 30m", "@every -1h", "@every 1", "@every 500ms", "@every 999999h"]
)
def test_an_invalid_duration_is_an_error_of_cron(expression: str) -> None:
    with pytest.raises(InvalidInput, match="cron: @every: "):
        parse_definition(definition(cron=expression))


def test_the_default_for_gaps_depends_on_the_trigger() -> None:
    assert parse_definition(definition()).rule.gap is DstGap.AFTER
    rrule = parse_definition(definition(cron=None, rrule="FREQ=DAILY"))
    assert rrule.rule.gap is DstGap.SHIFT
    assert parse_definition(definition(cron=None, rrule="FREQ=DAILY", dst={"gap": "after"})).rule.gap is DstGap.AFTER
    assert parse_definition(definition(dst={"fold": "both"})).rule.gap is DstGap.AFTER


def test_a_patch_with_another_trigger_gets_its_default_unless_another_policy_was_chosen() -> None:
    default, chosen = parse_definition(definition()), parse_definition(definition(dst={"gap": "skip"}))
    assert parse_definition(apply_patch(default, {"rrule": "FREQ=DAILY"})).rule.gap is DstGap.SHIFT
    assert parse_definition(apply_patch(default, {"rrule": "FREQ=DAILY", "dst": {"gap": "after"}})).rule.gap is DstGap.AFTER
    assert parse_definition(apply_patch(chosen, {"rrule": "FREQ=DAILY"})).rule.gap is DstGap.SKIP
    assert parse_definition(apply_patch(default, {"cron": "0 5 * * *"})).rule.gap is DstGap.AFTER

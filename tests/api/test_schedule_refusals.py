"""Invalid schedules: one case for each rule. The error names the field, and nothing is written."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import definition, fields_of, message_of, problem_of

WORKER = {"kind": "worker", "type": "report"}
HTTP = {"kind": "http", "url": "https://example.org/hook"}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


WRONG_TYPES: dict[str, Any] = {
    "name": 5,
    "description": None,
    "cron": 5,
    "timezone": None,
    "target": "worker",
    "overlap": "sometimes",
    "max_concurrent": "1",
    "catch_up": 1,
    "misfire_grace_seconds": "1h",
    "jitter_seconds": True,
    "dst": "after",
    "calendars": [],
    "starts_at": 1767225600,
    "ends_at": "tomorrow",
    "priority": 1.5,
    "max_attempts": "3",
    "retry": 3,
    "timeout_seconds": None,
    "labels": [],
    "enabled": "yes",
}


@pytest.mark.parametrize("field", WRONG_TYPES)
async def test_it_rejects_a_wrong_type(client: httpx.AsyncClient, field: str) -> None:
    response = await client.post("/v1/schedules", json=definition(**{field: WRONG_TYPES[field]}))
    assert fields_of(response) == [field]
    assert (await client.get("/v1/schedules")).json()["items"] == []


OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("max_concurrent", 0),
    ("max_concurrent", 10_001),
    ("misfire_grace_seconds", -1),
    ("misfire_grace_seconds", 1e12),
    ("jitter_seconds", -0.1),
    ("jitter_seconds", 86_401),
    ("priority", -1),
    ("priority", 1001),
    ("priority", 2**70),
    ("max_attempts", 0),
    ("max_attempts", 101),
    ("timeout_seconds", 0),
    ("timeout_seconds", 604_801),
    ("description", "x" * 2001),
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
async def test_it_rejects_a_value_out_of_range(client: httpx.AsyncClient, field: str, value: Any) -> None:
    assert fields_of(await client.post("/v1/schedules", json=definition(**{field: value}))) == [field]


NESTED: list[tuple[str, dict[str, Any]]] = [
    ("dst.gap", {"dst": {"gap": "before"}}),
    ("dst.fold", {"dst": {"fold": 1}}),
    ("dst.other", {"dst": {"other": 1}}),
    ("calendars.exclude", {"calendars": {"exclude": "x"}}),
    ("calendars.exclude", {"calendars": {"exclude": ["nowhere"]}}),
    ("calendars.only", {"calendars": {"only": [str(number) for number in range(17)]}}),
    ("retry.kind", {"retry": {"kind": "never"}}),
    ("retry.base_seconds", {"retry": {"base_seconds": -1}}),
    ("retry.factor", {"retry": {"factor": 0}}),
    ("retry.max_seconds", {"retry": {"max_seconds": 1e12}}),
    ("target.kind", {"target": {"kind": "unknown"}}),
    ("target.kind", {"target": {"type": "report"}}),
    ("target.type", {"target": {"kind": "worker"}}),
    ("target.type", {"target": {"kind": "worker", "type": "a b"}}),
    ("target.queue", {"target": {**WORKER, "queue": ""}}),
    ("target.queue", {"target": {**WORKER, "queue": "a\x00"}}),
    ("target.color", {"target": {**WORKER, "color": "red"}}),
    ("target.url", {"target": {**HTTP, "url": "ftp://example.org"}}),
    ("target.url", {"target": {**HTTP, "url": "https://user:secret@example.org"}}),
    ("target.url", {"target": {**HTTP, "url": "https://example.org/\n"}}),
    ("target.method", {"target": {**HTTP, "method": "BREW"}}),
    ("target.success", {"target": {**HTTP, "success": "always"}}),
    ("target.headers", {"target": {**HTTP, "headers": {"Host": "x"}}}),
    ("target.headers", {"target": {**HTTP, "headers": {"X-A": "a\r\nb"}}}),
    ("target.mode", {"target": {**HTTP, "mode": "later"}}),
    ("target.broker", {"target": {"kind": "celery", "task": "t", "broker": "unknown"}}),
]


@pytest.mark.parametrize(("field", "changed"), NESTED)
async def test_it_names_a_field_inside_an_object(client: httpx.AsyncClient, field: str, changed: dict[str, Any]) -> None:
    assert fields_of(await client.post("/v1/schedules", json=definition(**changed))) == [field]


BAD_NAMES = ["", " ", "a b", "a/b", "ä", "a\x00b", "\u202ename", "a\n", "x" * 201, "x" * 1_000_000]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name[:10]) + str(len(name)))
async def test_it_rejects_a_name_with_other_characters_or_too_long(client: httpx.AsyncClient, name: str) -> None:
    response = await client.post("/v1/schedules", json=definition(name=name))
    assert "1 to 200" in message_of(response, "name")
    assert len(response.content) < 4096


async def test_it_rejects_an_unknown_time_zone_and_suggests_one(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules", json=definition(timezone="Europe/Pariss"))
    assert "Europe/Paris" in message_of(response, "timezone")


async def test_it_rejects_an_abbreviation_and_names_the_zone(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules", json=definition(timezone="EST"))
    assert "America/New_York" in message_of(response, "timezone")


@pytest.mark.parametrize("zone", ["", "../../etc/passwd", "UTC\x00", "/UTC", "Europe", "x" * 100_000, "+02:00"])
async def test_it_rejects_an_invalid_zone(client: httpx.AsyncClient, zone: str) -> None:
    assert fields_of(await client.post("/v1/schedules", json=definition(timezone=zone))) == ["timezone"]


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("61 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 32 * *", "day"),
        ("* * * 13 *", "month"),
        ("* * * * 9", "day-of-week"),
        ("* * *", "field"),
        ("", ""),
        ("0 0 30 2 *", ""),
        ("* " * 50_000, ""),
        ("0 0 * * *\x00", ""),
    ],
)
async def test_it_rejects_an_invalid_cron_expression_and_names_the_field(
    client: httpx.AsyncClient, cron: str, message: str
) -> None:
    assert message in message_of(await client.post("/v1/schedules", json=definition(cron=cron)), "cron")


@pytest.mark.parametrize("seconds", [0, -1, 1e-9, 1e300, 1e18])
async def test_it_rejects_an_invalid_interval(client: httpx.AsyncClient, seconds: float) -> None:
    response = await client.post("/v1/schedules", json=definition(cron=..., every_seconds=seconds))
    assert fields_of(response) == ["every_seconds"]


@pytest.mark.parametrize("rule", ["", "FREQ=NEVER", "FREQ=DAILY;COUNT=0", "FREQ=DAILY;UNTIL=20200101T000000Z", "\x00"])
async def test_it_rejects_a_recurrence_that_never_fires(client: httpx.AsyncClient, rule: str) -> None:
    assert fields_of(await client.post("/v1/schedules", json=definition(cron=..., rrule=rule))) == ["rrule"]


async def test_it_rejects_a_single_time_in_the_past(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules", json=definition(cron=..., at="2020-01-01T00:00:00Z"))
    assert "past" in message_of(response, "at")


async def test_it_rejects_two_triggers_and_none(client: httpx.AsyncClient) -> None:
    for changed in ({"every_seconds": 5}, {"cron": ...}, {"cron": None}):
        response = await client.post("/v1/schedules", json=definition(**changed))
        assert "exactly one" in message_of(response, "cron")


async def test_it_rejects_an_anchor_with_a_cron_expression(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules", json=definition(anchor="2026-01-01T00:00:00Z"))
    assert fields_of(response) == ["anchor"]


@pytest.mark.parametrize("field", ["starts_at", "ends_at"])
@pytest.mark.parametrize(
    "time",
    [
        *("2026-01-01T00:00:00", "2026-02-30T00:00:00Z", "2026-01-01", "now", ""),
        *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-01:00", "10000-01-01T00:00:00Z"),
    ],
)
async def test_it_rejects_a_naive_or_impossible_time(client: httpx.AsyncClient, field: str, time: str) -> None:
    assert fields_of(await client.post("/v1/schedules", json=definition(**{field: time}))) == [field]


@pytest.mark.parametrize("field", ["at", "anchor"])
async def test_it_rejects_a_naive_time_in_the_trigger(client: httpx.AsyncClient, field: str) -> None:
    trigger: dict[str, Any] = {"at": {}, "anchor": {"every_seconds": 5}}[field]
    response = await client.post("/v1/schedules", json=definition(cron=..., **trigger, **{field: "2999-01-01T00:00:00"}))
    assert fields_of(response) == [field]


async def test_extreme_times_are_not_server_errors(client: httpx.AsyncClient) -> None:
    first, last = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"
    edges: list[dict[str, Any]] = [
        {"starts_at": first, "ends_at": last},
        {"starts_at": last},
        {"ends_at": first},
        {"cron": ..., "at": last},
        {"cron": ..., "at": first},
        {"cron": ..., "every_seconds": 3600, "anchor": first},
        {"cron": ..., "every_seconds": 3600, "anchor": last},
        {"cron": ..., "rrule": "FREQ=DAILY", "anchor": first},
        {"cron": ..., "rrule": "FREQ=DAILY", "anchor": last},
        {"timezone": "Pacific/Kiritimati", "cron": ..., "at": last},
    ]
    for index, changed in enumerate(edges):
        response = await client.post("/v1/schedules", json=definition(name=f"e{index}", **changed))
        assert response.status_code in (201, 422), (changed, response.text)


async def test_it_rejects_an_end_before_the_start(client: httpx.AsyncClient) -> None:
    window = {"starts_at": "2999-01-02T00:00:00Z", "ends_at": "2999-01-01T00:00:00Z"}
    assert fields_of(await client.post("/v1/schedules", json=definition(**window))) == ["ends_at"]


@pytest.mark.parametrize("field", ["id", "status", "revision", "partition", "tenant_id", "fault", "color"])
async def test_it_rejects_an_unknown_field(client: httpx.AsyncClient, field: str) -> None:
    assert "known" in message_of(await client.post("/v1/schedules", json=definition(**{field: 1})), field)


@pytest.mark.parametrize("field", ["name", "target"])
async def test_it_rejects_a_schedule_without_a_required_field(client: httpx.AsyncClient, field: str) -> None:
    assert message_of(await client.post("/v1/schedules", json=definition(**{field: ...})), field) == "is required"


@pytest.mark.parametrize("body", ["[]", '"text"', "1", "null", "true"])
async def test_it_rejects_a_body_that_is_not_an_object(client: httpx.AsyncClient, body: str) -> None:
    response = await client.post("/v1/schedules", content=body, headers={"Content-Type": "application/json"})
    assert fields_of(response) == ["body"]


@pytest.mark.parametrize(
    "labels",
    [
        *({"a b": "x"}, {"": "x"}, {"a": "x" * 257}, {"a": "\x00"}, {"x" * 201: ""}),
        *({"a": 1}, {"a": None}, {str(number): "" for number in range(33)}),
    ],
)
async def test_it_rejects_bad_labels(client: httpx.AsyncClient, labels: dict[str, Any]) -> None:
    fields = fields_of(await client.post("/v1/schedules", json=definition(labels=labels)))
    assert all(field.startswith("labels") for field in fields)


@pytest.mark.parametrize("text", ["a\x00b", "bell\x07"])
async def test_it_rejects_control_characters_in_the_description(client: httpx.AsyncClient, text: str) -> None:
    assert fields_of(await client.post("/v1/schedules", json=definition(description=text))) == ["description"]


async def test_it_rejects_a_payload_that_is_too_large(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules", json=definition(payload="x" * 65_536))
    assert [error["field"] for error in problem_of(response, 413)["errors"]] == ["payload"]


async def test_it_rejects_a_payload_that_is_nested_too_deeply(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.post("/v1/schedules", json=definition(payload=deep(64)))) == ["payload"]
    assert (await client.post("/v1/schedules", json=definition(payload=deep(63)))).status_code == 201


async def test_it_names_all_invalid_fields(client: httpx.AsyncClient) -> None:
    wrong = definition(name="a b", description="\x00", retry={"factor": 0}, anchor="2026-01-01T00:00:00Z")
    assert set(fields_of(await client.post("/v1/schedules", json=wrong))) == {
        *("name", "description", "retry.factor", "anchor")
    }

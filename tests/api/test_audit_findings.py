"""GET /v1/audit/findings, and findings in the audit and in why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
import uuid_utils.compat

from everbeat.api.app import ApiContext
from everbeat.core.audit_findings import AuditFinding, FindingKind, Resolution
from everbeat.core.definitions import rfc3339
from everbeat.core.schedules import DEFAULT_TENANT, Schedule
from everbeat.store.base import Store
from tests.api.conftest import definition, fields_of
from tests.factories import NOW, OTHER_TENANT


def a_finding(schedule_id: UUID | None, kind: FindingKind = FindingKind.MISSING, **more: Any) -> AuditFinding:
    defaults: dict[str, Any] = {
        "id": uuid_utils.compat.uuid7(),
        "tenant_id": None if schedule_id is None else DEFAULT_TENANT,
        "scheduled_for": NOW,
        "found_at": NOW + timedelta(seconds=20),
        "details": '{"name":"job"}' if schedule_id is not None else '{"partitions":256}',
    }
    return AuditFinding(kind=kind, schedule_id=schedule_id, **{**defaults, **more})


async def a_schedule(client: httpx.AsyncClient, context: ApiContext, name: str = "job") -> Schedule:
    await client.put(f"/v1/schedules/{name}", json=definition(name=name))
    return await context.schedules.get(DEFAULT_TENANT, name)


async def test_findings_are_listed_with_open_ones_first(client: httpx.AsyncClient, store: Store, context: ApiContext) -> None:
    schedule = await a_schedule(client, context)
    found = [a_finding(schedule.id, scheduled_for=NOW + timedelta(minutes=index)) for index in range(4)]
    await store.finding_record(found)
    await store.finding_resolve({found[3].id: Resolution.RECORDED}, now=NOW + timedelta(minutes=9))
    seen: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await client.get("/v1/audit/findings", params={"limit": 2, **cursor})).json()
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}

    assert [one["id"] for one in seen] == [str(found[index].id) for index in (2, 1, 0, 3)]
    assert seen[0] == {
        **{"id": str(found[2].id), "tenant_id": str(DEFAULT_TENANT), "schedule_id": str(schedule.id), "schedule": "job"},
        **{"kind": "missing", "state": "open", "scheduled_for": rfc3339(found[2].scheduled_for), "details": {}},
        **{"found_at": rfc3339(found[2].found_at), "resolved_at": None, "resolution": None},
    }
    assert (seen[3]["state"], seen[3]["resolution"]) == ("resolved", "recorded")


async def test_findings_can_be_filtered(client: httpx.AsyncClient, store: Store, context: ApiContext) -> None:
    job, other = await a_schedule(client, context), await a_schedule(client, context, "other")
    found = [
        a_finding(job.id),
        a_finding(job.id, FindingKind.OVERDUE, scheduled_for=NOW + timedelta(hours=1)),
        a_finding(other.id, resolved_at=NOW + timedelta(hours=2), resolution=Resolution.OVER),
        a_finding(None, FindingKind.UNOWNED_PARTITIONS),
    ]
    await store.finding_record(found)

    async def ids(**params: str) -> list[str]:
        return [one["id"] for one in (await client.get("/v1/audit/findings", params=params)).json()["items"]]

    def texts(*indexes: int) -> list[str]:
        return [str(found[index].id) for index in indexes]

    assert await ids() == texts(3, 1, 0, 2)
    assert await ids(state="open") == texts(3, 1, 0)
    assert await ids(state="resolved") == texts(2)
    assert await ids(kind="overdue") == texts(1)
    assert await ids(schedule="job") == texts(1, 0)
    assert await ids(**{"from": rfc3339(NOW + timedelta(minutes=1))}) == texts(1)


async def test_findings_of_other_tenants_are_not_shown(client: httpx.AsyncClient, store: Store) -> None:
    await store.finding_record([a_finding(UUID(int=9), tenant_id=OTHER_TENANT)])

    assert (await client.get("/v1/audit/findings")).json()["items"] == []
    assert len((await client.get("/v1/audit/findings?tenant=all")).json()["items"]) == 1
    assert (await client.get("/v1/audit")).json()["findings"] == []
    assert len((await client.get("/v1/audit?tenant=all")).json()["findings"]) == 1


@pytest.mark.parametrize("query", ["state=none", "kind=none", "cursor=x", "from=x"])
async def test_an_invalid_query_is_refused(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/v1/audit/findings?{query}")

    assert fields_of(response) == [query.split("=")[0]]


async def test_the_audit_and_why_name_an_open_finding(client: httpx.AsyncClient, store: Store, context: ApiContext) -> None:
    schedule = await a_schedule(client, context)
    finding = a_finding(schedule.id, scheduled_for=NOW)
    await store.finding_record([finding])

    assert [one["id"] for one in (await client.get("/v1/audit")).json()["findings"]] == [str(finding.id)]
    why = (await client.get("/v1/schedules/job/why", params={"at": rfc3339(NOW)})).json()
    (fact,) = [one for one in why["facts"] if one["fact"] == "finding"]
    assert fact["value"] == "missing, open"
    assert [one["id"] for one in (await client.get(fact["link"])).json()["items"]] == [str(finding.id)]

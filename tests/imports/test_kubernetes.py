"""How CronJobs become schedules, at which times both run, and what is named as not carried over."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.imports.base import ImportPlan, PlannedSchedule, compare_times
from everbeat.imports.kubernetes import UnreadableManifest, YamlMissing, read_manifests
from everbeat.imports.kubernetes_schedules import KubernetesOptions, plan_kubernetes

NOW = datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
NEW_YORK = "America/New_York"


def cron_job(
    schedule: str = "0 2 * * *",
    *,
    container: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    job: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    containers = [{"name": "c", "image": "shop:1", "command": ["report"], **(container or {})}]
    template = {"spec": {"containers": containers, **(pod or {})}}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "report", "namespace": "shop"},
        "spec": {"schedule": schedule, "jobTemplate": {"spec": {"template": template, **(job or {})}}, **spec},
    }


def plan_of(*jobs: dict[str, Any], **options: Any) -> ImportPlan:
    return plan_kubernetes(read_manifests(yaml.safe_dump_all(jobs), "jobs.yaml"), KubernetesOptions(**options))


def planned(manifest: dict[str, Any], **options: Any) -> PlannedSchedule:
    plan = plan_of(manifest, **options)
    assert plan.not_carried_over == []
    return plan.schedules[0]


def reason(manifest: dict[str, Any], **options: Any) -> str:
    plan = plan_of(manifest, **options)
    assert plan.schedules == []
    return plan.not_carried_over[0].reason


@pytest.mark.parametrize(
    ("expression", "cron"),
    [
        ("@hourly", "0 * * * *"),
        ("0 9 */2 * 1", "0 9 1-31/2 * 1"),
        ("0 9 */1 * mon-fri", "0 9 * * mon-fri"),
        ("5/15 ? ? * *", "5-59/15 * * * *"),
        ("0 0 1,15 * ?", "0 0 1,15 * *"),
        ("*/10 8-17 * JAN,feb SUN", "0-59/10 8-17 * JAN,feb SUN"),
    ],
)
def test_an_expression_is_read_as_kubernetes_reads_it(expression: str, cron: str) -> None:
    found = planned(cron_job(expression))
    assert found.definition["cron"] == cron
    compared = compare_times(found, NOW)
    assert not compared.differs, compared.first_difference
    assert len(compared.ticks) == 20


def matches(expression: tuple[str, ...], instant: datetime) -> bool:
    """Whether the controller runs at a minute, for fields that are numbers, stars, or stars with a step."""

    def has(text: str, value: int, low: int) -> bool:
        return text == "*" or (value - low) % int(text[2:]) == 0 if text[0] == "*" else value == int(text)

    minute, hour, day, month, weekday = expression
    in_month, in_week = has(day, instant.day, 1), has(weekday, instant.isoweekday() % 7, 0)
    is_day = in_month and in_week if "*" in (day, weekday) else in_month or in_week
    return is_day and has(minute, instant.minute, 0) and has(hour, instant.hour, 0) and has(month, instant.month, 1)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(
        st.sampled_from(["*", "*/7", "0", "30", "59"]),
        st.sampled_from(["*", "*/2", "1", "2", "3"]),
        st.sampled_from(["*", "*/2", "10", "3"]),
        st.sampled_from(["*", "*/2", "3", "11"]),
        st.sampled_from(["*", "*/3", "0", "1"]),
    ),
    st.sampled_from([datetime(2030, 3, 9, 22, tzinfo=UTC), datetime(2030, 11, 2, 22, tzinfo=UTC)]),
)
def test_the_times_of_each_minute_around_a_dst_change_are_equal(expression: tuple[str, ...], start: datetime) -> None:
    zone = ZoneInfo(NEW_YORK)
    minutes = [start + timedelta(minutes=number) for number in range(1, 36 * 60)]
    expected = [each for each in minutes if matches(expression, each.astimezone(zone))]
    compared = compare_times(planned(cron_job(" ".join(expression), timeZone=NEW_YORK)), start, len(expected) + 1)
    for times in (compared.ticks, compared.expected or []):
        assert times[: len(expected)] == expected
        assert times[len(expected)] > minutes[-1]


def test_a_zone_is_that_of_the_cron_job_or_of_its_schedule() -> None:
    assert planned(cron_job(timeZone=NEW_YORK)).definition["timezone"] == NEW_YORK
    assert planned(cron_job("CRON_TZ=Asia/Kolkata 0 2 * * *")).definition["timezone"] == "Asia/Kolkata"
    assert planned(cron_job("TZ=Asia/Kolkata 0 2 * * *")).definition["timezone"] == "Asia/Kolkata"
    assert planned(cron_job(), timezone="Europe/Berlin").definition["timezone"] == "Europe/Berlin"
    assert "does not accept both" in reason(cron_job("TZ=Asia/Kolkata 0 2 * * *", timeZone=NEW_YORK))


def test_policies_and_limits_are_carried_over() -> None:
    found = planned(
        cron_job(
            concurrencyPolicy="Replace",
            suspend=True,
            startingDeadlineSeconds=200,
            failedJobsHistoryLimit=1,
            job={"backoffLimit": 2, "activeDeadlineSeconds": 600, "ttlSecondsAfterFinished": 5},
            pod={"terminationGracePeriodSeconds": 10},
        )
    )
    definition = found.definition
    assert (definition["overlap"], definition["catch_up"], definition["enabled"]) == ("cancel_previous", "latest", False)
    assert (definition["misfire_grace_seconds"], definition["max_attempts"], definition["timeout_seconds"]) == (200, 3, 600)
    assert definition["payload"] == {"argv": ["report"], "kill_after_seconds": 10}
    assert any("failedJobsHistoryLimit, ttlSecondsAfterFinished" in note for note in found.notes)
    defaults = planned(cron_job()).definition
    assert (defaults["name"], defaults["overlap"], defaults["max_attempts"]) == ("k8s.shop.report", "allow", 7)
    assert planned(cron_job(concurrencyPolicy="Forbid")).definition["overlap"] == "skip"
    every = planned(cron_job("@every 90m")).definition
    assert every["every_seconds"] == 5400


def test_a_command_has_its_arguments_variables_and_directory() -> None:
    environment = [{"name": "DAY", "value": "mon"}, {"name": "FILE", "value": "/tmp/$(DAY)"}]
    container = {"args": ["$(FILE)", "$$(DAY)", "$(OTHER)"], "env": environment, "workingDir": "/srv"}
    payload = planned(cron_job(container=container)).definition["payload"]
    assert payload["argv"] == ["report", "/tmp/mon", "$(DAY)", "$(OTHER)"]
    assert (payload["env"], payload["cwd"]) == ({"DAY": "mon", "FILE": "/tmp/mon"}, "/srv")


def test_what_exists_only_in_the_cluster_is_named() -> None:
    secret = {"secretKeyRef": {"name": "db", "key": "password"}}
    container = {
        "env": [{"name": "PASSWORD", "valueFrom": secret}],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": {"limits": {"cpu": 1}},
    }
    job = cron_job(container=container, pod={"nodeSelector": {"disk": "ssd"}})
    named = (
        "the variable PASSWORD comes from secretKeyRef db password",
        "all variables of configMapRef settings",
        "the volume data at /data",
    )
    assert all(text in reason(job) for text in named)
    notes = "\n".join(planned(job, allow_missing=True).notes)
    assert all(text in notes for text in named)
    assert "without effect outside Kubernetes: nodeSelector, resources" in notes
    assert "the image shop:1 is not used" in notes


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (cron_job(container={"command": None}), "the entry point of the image shop:1"),
        (cron_job(pod={"initContainers": [{"name": "init"}]}), "several containers"),
        (cron_job(job={"parallelism": 3}), "parallelism is 3"),
        (cron_job("0 2 * * 7"), "day of week: 7 is not a value that Kubernetes accepts"),
        (cron_job("0 2 * *"), "has 4 fields"),
        (cron_job(timeZone="Mars/Base"), "Mars/Base"),
        (cron_job(container={"workingDir": "here"}), "absolute path"),
    ],
)
def test_a_cron_job_that_no_schedule_represents_is_listed_with_the_reason(job: dict[str, Any], text: str) -> None:
    assert text in reason(job)


def test_containers_can_become_a_task_of_a_worker_or_a_request() -> None:
    job = cron_job(pod={"containers": [{"image": "a"}, {"image": "b"}]})
    worker = planned(job, target="worker", queue="jobs")
    assert worker.definition["target"] == {"kind": "worker", "queue": "jobs", "type": "report"}
    assert "the containers (a, b)" in worker.notes[0]
    http = planned(job, target="http", http_url="https://jobs.example/{namespace}/{name}")
    assert http.definition["target"] == {"kind": "http", "url": "https://jobs.example/shop/report"}


def test_lists_and_other_kinds_are_read_and_names_are_unique() -> None:
    job = cron_job()
    nested = {"kind": "List", "items": [job, {"kind": "CronJobList", "items": [{**cron_job(), "kind": None}]}]}
    del nested["items"][1]["items"][0]["kind"]  # type: ignore[index]
    plan = plan_of(nested, {"kind": "Deployment"})
    assert [each.name for each in plan.schedules] == ["k8s.shop.report"]
    assert "another CronJob has the name" in plan.not_carried_over[0].reason
    assert plan.notes == ["objects that are not CronJobs were ignored: 1 Deployment"]


def test_json_needs_no_further_package_and_invalid_text_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableManifest, match="not valid YAML"):
        read_manifests("a: [", "x")
    with pytest.raises(UnreadableManifest, match="not an object"):
        read_manifests("hello", "x")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert read_manifests(json.dumps(cron_job()), "x")[0].kind == "CronJob"
    with pytest.raises(YamlMissing, match="everbeat\\[cli\\]"):
        read_manifests("kind: CronJob", "x")
    with pytest.raises(UnreadableManifest, match="not valid JSON"):
        read_manifests("{", "x")

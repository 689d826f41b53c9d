"""Results, errors and payloads of any size and shape have a clear outcome and do not affect other tasks."""

from __future__ import annotations

import json

from tests.cluster.fleet import Site

MEGABYTE = 1024 * 1024


def test_results_and_errors_of_fifty_megabytes_are_truncated_with_a_note(site: Site) -> None:
    site.worker()
    result = site.submit("big", payload={"megabytes": 50})
    error = site.submit("big", payload={"megabytes": 50, "fail": True}, max_attempts=1)
    unrelated = site.submit("effect")
    kept = site.wait_state(result)["result"]
    assert len(json.dumps(kept)) < 64 * 1024
    assert str(50 * MEGABYTE + 2) in json.dumps(kept), kept
    dead = site.wait_state(error, "dead")["error"]
    assert (dead["kind"], len(dead["message"]) <= 4000) == ("ValueError", True)
    assert "cut" in dead["message"]
    assert len(dead["trace"]) <= 16_000
    assert "in big" in dead["trace"]
    site.wait_state(unrelated)
    site.reader.assert_explained([result, unrelated], outcomes=frozenset())
    site.reader.assert_explained([error], outcomes=frozenset(), state="dead")


def test_a_report_of_fifty_megabytes_is_rejected_and_a_smaller_one_accepted(site: Site) -> None:
    task = site.submit("t")
    claimed = site.raw().claim(lease_seconds=120)[0]
    lease = {"id": claimed["id"], "fence": claimed["fence"]}
    big = "x" * (50 * MEGABYTE)
    for verb, body in (
        ("complete", {"results": [{**lease, "result": big}]}),
        ("fail", {"failures": [{**lease, "error": {"message": big}}]}),
        ("heartbeat", {"leases": [{**lease, "log": big}]}),
    ):
        response = site.client.post(f"/v1/worker/{verb}", json={"worker": "raw", **body})
        assert response.status_code == 413, f"{verb}: {response.status_code} {response.text[:200]}"
    # Below the body limit, the stored value is truncated.
    assert site.raw().complete(claimed, result="y" * (5 * MEGABYTE)) == ["ok"]
    assert str(5 * MEGABYTE + 2) in json.dumps(site.task(task)["result"])
    second = site.submit("t", max_attempts=1)
    assert site.raw().fail(site.raw().claim()[0], "z" * (5 * MEGABYTE))["next"] == "dead"
    assert len(site.task(second)["error"]["message"]) < 4100


def test_a_value_that_json_cannot_represent_ends_its_task_with_a_clear_error(site: Site) -> None:
    site.worker()
    refused = {
        what: site.submit("invalid", payload={"what": what}) for what in ("object", "cycle", "surrogate", "deeper", "keys")
    }
    kept = {what: site.submit("invalid", payload={"what": what}) for what in ("nul", "bytes", "infinite")}
    # Close to the limits of encoders and decoders: stored or rejected.
    either = {what: site.submit("invalid", payload={"what": what}) for what in ("huge", "deep")}
    unrelated = site.submit("effect")
    for what, task in refused.items():
        dead = site.wait_state(task, "dead")
        assert "JSON cannot represent" in dead["error"]["message"], (what, dead["error"])
    for task in (*kept.values(), unrelated):
        site.wait_state(task)
    assert site.task(kept["nul"])["result"] == "a\0b"
    for what, task in {**refused, **kept, **either}.items():
        # The task has run. It must not run again because its result cannot be stored.
        ended = site.wait_end(task)
        assert (ended["attempt"], ended["state"] in ("completed", "dead")) == (1, True), (what, ended)


def test_deeply_nested_payloads_are_rejected(site: Site) -> None:
    head, foot = f'{{"type": "t", "queue": "{site.queue}", "payload": ', "}"
    payloads = {
        "deep lists": "[" * 100_000 + "]" * 100_000,
        "deep objects": '{"a":' * 5_000 + "1" + "}" * 5_000,
        "just too deep": "[" * 200 + "]" * 200,
        "a bomb": "[" * 1_000_000,
        "huge number": "1" * 100_000,
        "large": json.dumps("x" * (10 * 1024 * 1024)),
    }
    for what, payload in payloads.items():
        response = site.client.post("/v1/tasks", content=head + payload + foot, headers={"content-type": "application/json"})
        assert response.status_code in (400, 413, 422), f"{what}: {response.status_code} {response.text[:300]}"
        assert response.headers["content-type"].startswith("application/problem+json")
    assert site.raw().claim() == []
    assert site.client.get("/readyz").is_success

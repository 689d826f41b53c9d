"""Results and errors of any size and shape, payloads without bottom: clear ends, and nobody else is harmed."""

from __future__ import annotations

import json

from tests.cluster.fleet import Site

MEGABYTE = 1024 * 1024


def test_results_and_errors_of_fifty_megabytes_are_cut_with_a_note(site: Site) -> None:
    site.worker()
    result = site.submit("big", payload={"megabytes": 50})
    error = site.submit("big", payload={"megabytes": 50, "fail": True}, max_attempts=1)
    beside = site.submit("effect")
    kept = site.wait_state(result)["result"]
    assert len(json.dumps(kept)) < 64 * 1024
    assert str(50 * MEGABYTE + 2) in json.dumps(kept), kept
    dead = site.wait_state(error, "dead")["error"]
    assert (dead["kind"], len(dead["message"]) <= 4000) == ("ValueError", True)
    assert "cut" in dead["message"]
    assert len(dead["trace"]) <= 16_000
    assert "in big" in dead["trace"]
    site.wait_state(beside)
    site.books.assert_explained([result, beside], outcomes=frozenset())
    site.books.assert_explained([error], outcomes=frozenset(), state="dead")


def test_a_worker_that_sends_fifty_megabytes_is_refused_and_may_try_again_with_less(site: Site) -> None:
    task = site.submit("t")
    held = site.raw().claim(lease_seconds=120)[0]
    lease = {"id": held["id"], "fence": held["fence"]}
    big = "x" * (50 * MEGABYTE)
    for verb, body in (
        ("complete", {"results": [{**lease, "result": big}]}),
        ("fail", {"failures": [{**lease, "error": {"message": big}}]}),
        ("heartbeat", {"leases": [{**lease, "log": big}]}),
    ):
        answer = site.client.post(f"/v1/worker/{verb}", json={"worker": "raw", **body})
        assert answer.status_code == 413, f"{verb}: {answer.status_code} {answer.text[:200]}"
    # Below the limit of a body, what is kept is cut.
    assert site.raw().complete(held, result="y" * (5 * MEGABYTE)) == ["ok"]
    assert str(5 * MEGABYTE + 2) in json.dumps(site.task(task)["result"])
    second = site.submit("t", max_attempts=1)
    assert site.raw().fail(site.raw().claim()[0], "z" * (5 * MEGABYTE))["next"] == "dead"
    assert len(site.task(second)["error"]["message"]) < 4100


def test_what_json_cannot_hold_ends_its_task_with_a_clear_error(site: Site) -> None:
    site.worker()
    refused = {what: site.submit("odd", payload={"what": what}) for what in ("object", "cycle", "surrogate", "deeper", "keys")}
    kept = {what: site.submit("odd", payload={"what": what}) for what in ("nul", "bytes", "infinite")}
    # At the edge of what encoders and decoders take: kept or refused.
    either = {what: site.submit("odd", payload={"what": what}) for what in ("huge", "deep")}
    beside = site.submit("effect")
    for what, task in refused.items():
        dead = site.wait_state(task, "dead")
        assert "JSON cannot hold" in dead["error"]["message"], (what, dead["error"])
    for task in (*kept.values(), beside):
        site.wait_state(task)
    assert site.task(kept["nul"])["result"] == "a\0b"
    for what, task in {**refused, **kept, **either}.items():
        # Its work is done: it must not be done again because its result cannot be kept.
        ended = site.wait_end(task)
        assert (ended["attempt"], ended["state"] in ("completed", "dead")) == (1, True), (what, ended)


def test_payloads_without_bottom_are_refused(site: Site) -> None:
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
        answer = site.client.post("/v1/tasks", content=head + payload + foot, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 413, 422), f"{what}: {answer.status_code} {answer.text[:300]}"
        assert answer.headers["content-type"].startswith("application/problem+json")
    assert site.raw().claim() == []
    assert site.client.get("/readyz").is_success

"""Repeated requests, without a network and without waiting: the tests step the exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everbeat.client import requests
from everbeat.client.errors import NotFoundProblem, NotReachable, ServerProblem
from everbeat.client.exchange import NoResponse, RetryBudget, Send, Sleep, exchange
from everbeat.client.requests import HttpResponse, Request
from everbeat.client.servers import Servers
from everbeat.core.protocol import LeaseClaimRequest, TaskInput

OK = HttpResponse(200, {}, b"{}")
UNAVAILABLE = HttpResponse(503, {"retry-after": "2"}, b'{"detail": "unavailable"}')
BUSY = HttpResponse(429, {"retry-after": "1"}, b'{"detail": "too many"}')
CUT = NoResponse("reset", was_sent=True)
REFUSED = NoResponse("refused", was_sent=False)

(SUBMIT,) = requests.submit([TaskInput(type="a")])
TRIGGER = requests.build("POST", "/v1/schedules/a/trigger")
CLAIM = requests.claim(LeaseClaimRequest(worker="w", queues=["a"]))
DELETE = requests.build("DELETE", "/v1/schedules/a")


class Stepped:
    """Feeds outcomes to an exchange. Time passes only in pauses."""

    def __init__(
        self,
        request: Request,
        *outcomes: HttpResponse | NoResponse,
        deadline: float = 30,
        random_fraction: float = 1.0,
        urls: str = "http://test",
    ) -> None:
        self.request = request
        self.outcomes = list(outcomes)
        self.sent: list[Request] = []
        self.urls: list[str] = []
        self.pauses: list[float] = []
        self.servers = Servers(urls)
        self.retry_budget = RetryBudget(deadline, lambda: sum(self.pauses), lambda: random_fraction)

    def run(self) -> HttpResponse:
        steps = exchange(self.request, self.servers, self.retry_budget)
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                response: HttpResponse = done.value
                return response
            if isinstance(step, Send):
                self.sent.append(step.request)
                self.urls.append(step.url)
                outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
            else:
                assert isinstance(step, Sleep)
                self.pauses.append(step.seconds)
                outcome = None


def test_a_response_ends_the_exchange() -> None:
    assert Stepped(SUBMIT, OK).run() is OK


@pytest.mark.parametrize("failure", [CUT, REFUSED, UNAVAILABLE, BUSY])
def test_a_submit_is_repeated_with_the_same_key(failure: HttpResponse | NoResponse) -> None:
    stepped = Stepped(SUBMIT, failure, failure, OK)
    assert stepped.run() is OK
    assert len(stepped.sent) == 3
    assert len({request.headers["idempotency-key"] for request in stepped.sent}) == 1
    assert len({request.body for request in stepped.sent}) == 1


def test_an_unsafe_request_is_not_repeated_after_it_was_sent() -> None:
    stepped = Stepped(TRIGGER, CUT, OK)
    with pytest.raises(NotReachable, match="cannot reach Everbeat at http://test \\(reset\\)"):
        stepped.run()
    assert len(stepped.sent) == 1
    with pytest.raises(ServerProblem, match="unavailable"):
        Stepped(TRIGGER, UNAVAILABLE, OK).run()


@pytest.mark.parametrize("failure", [REFUSED, BUSY])
def test_a_request_that_was_not_processed_is_repeated(failure: HttpResponse | NoResponse) -> None:
    assert Stepped(TRIGGER, failure, OK).run() is OK


@pytest.mark.parametrize("failure", [CUT, REFUSED, UNAVAILABLE, BUSY])
def test_a_claim_is_never_repeated(failure: HttpResponse | NoResponse) -> None:
    stepped = Stepped(CLAIM, failure, OK)
    with pytest.raises((NotReachable, ServerProblem)):
        stepped.run()
    assert len(stepped.sent) == 1


def test_pauses_grow_to_a_limit_and_end_at_the_deadline() -> None:
    stepped = Stepped(SUBMIT, CUT)
    with pytest.raises(NotReachable):
        stepped.run()
    assert stepped.pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert sum(stepped.pauses) <= 30


def test_pauses_have_full_jitter() -> None:
    stepped = Stepped(SUBMIT, CUT, CUT, OK, random_fraction=0.25)
    stepped.run()
    assert stepped.pauses == [0.025, 0.05]


def test_it_waits_at_least_as_long_as_the_server_requests() -> None:
    stepped = Stepped(SUBMIT, UNAVAILABLE, OK)
    stepped.run()
    assert stepped.pauses == [2.1]


def test_it_does_not_wait_beyond_the_deadline() -> None:
    stepped = Stepped(SUBMIT, HttpResponse(503, {"retry-after": "60"}, b"{}"))
    with pytest.raises(ServerProblem) as raised:
        stepped.run()
    assert stepped.pauses == []
    assert raised.value.retry_after_seconds == 60


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 422, 500])
def test_a_refusal_is_not_repeated(status: int) -> None:
    stepped = Stepped(SUBMIT, HttpResponse(status, {}, b"{}"), OK)
    with pytest.raises(ServerProblem):
        stepped.run()
    assert len(stepped.sent) == 1


def test_a_delete_whose_reply_was_lost_succeeds() -> None:
    not_found = HttpResponse(404, {}, b"{}")
    assert Stepped(DELETE, CUT, not_found).run() is not_found
    with pytest.raises(NotFoundProblem):
        Stepped(DELETE, not_found).run()


def test_the_error_for_an_unreachable_server_suggests_a_fix() -> None:
    run: Callable[[], HttpResponse] = Stepped(SUBMIT, REFUSED, deadline=0).run
    with pytest.raises(NotReachable, match=r"http://test.*everbeat dev.*EVERBEAT_URL"):
        run()


TWO = "http://a,http://b"


@pytest.mark.parametrize("failure", [CUT, REFUSED, UNAVAILABLE])
def test_a_repeated_request_goes_to_the_next_server_at_once(failure: HttpResponse | NoResponse) -> None:
    stepped = Stepped(SUBMIT, failure, OK, urls=TWO)
    assert stepped.run() is OK
    assert (stepped.urls, stepped.pauses) == (["http://a", "http://b"], [])
    assert stepped.servers.current == "http://b"


def test_it_stays_with_a_server_that_responds() -> None:
    stepped = Stepped(SUBMIT, CUT, OK, urls=TWO)
    for _ in range(3):
        stepped.run()
    assert stepped.urls == ["http://a", "http://b", "http://b", "http://b"]


def test_it_waits_after_all_servers_have_failed() -> None:
    stepped = Stepped(SUBMIT, CUT, CUT, REFUSED, OK, urls=TWO)
    assert stepped.run() is OK
    assert stepped.urls == ["http://a", "http://b", "http://a", "http://b"]
    assert len(stepped.pauses) == 1


def test_an_unsafe_request_is_not_sent_to_another_server_but_the_next_one_is() -> None:
    stepped = Stepped(TRIGGER, CUT, OK, urls=TWO)
    with pytest.raises(NotReachable, match=r"http://a, http://b \(http://a: reset\)"):
        stepped.run()
    assert stepped.urls == ["http://a"]
    assert stepped.run() is OK
    assert stepped.urls == ["http://a", "http://b"]
    assert Stepped(TRIGGER, REFUSED, OK, urls=TWO).run() is OK


@pytest.mark.parametrize("failure", [CUT, REFUSED, UNAVAILABLE])
def test_a_claim_is_not_repeated_but_the_next_one_goes_to_the_next_server(failure: HttpResponse | NoResponse) -> None:
    stepped = Stepped(CLAIM, failure, OK, urls=TWO)
    with pytest.raises((NotReachable, ServerProblem)):
        stepped.run()
    assert stepped.run() is OK
    assert stepped.urls == ["http://a", "http://b"]


def test_a_busy_server_is_not_left() -> None:
    stepped = Stepped(SUBMIT, BUSY, OK, urls=TWO)
    assert stepped.run() is OK
    assert stepped.urls == ["http://a", "http://a"]


def test_requests_have_shorter_timeouts_if_another_server_can_respond() -> None:
    one, several = Stepped(SUBMIT, OK), Stepped(SUBMIT, OK, urls=TWO)
    claim, claim_of_several = Stepped(CLAIM, OK), Stepped(CLAIM, OK, urls=TWO)
    for stepped in (one, several, claim, claim_of_several):
        stepped.run()
    assert (one.sent[0].timeout_seconds, several.sent[0].timeout_seconds) == (None, 5)
    assert (claim.sent[0].timeout_seconds, claim_of_several.sent[0].timeout_seconds) == (10, 5)


def test_requests_that_failed_at_the_same_time_move_on_once() -> None:
    servers = Servers("http://a,http://b,http://c")
    servers.failed("http://a", "reset")
    servers.failed("http://a", "reset")
    assert servers.current == "http://b"


def test_an_outage_is_logged_after_two_seconds_once_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    stepped = Stepped(SUBMIT, *[REFUSED] * 7, OK)
    assert stepped.run() is OK
    started = next(index for index in range(1, 8) if sum(stepped.pauses[:index]) >= 2)
    (first, last) = [record.getMessage() for record in caplog.records]
    assert started == 5
    assert first == "cannot reach Everbeat at http://test (refused); trying for another 28 seconds"
    assert last.startswith("Everbeat responds again at http://test, after ")
    caplog.clear()
    assert Stepped(SUBMIT, REFUSED, REFUSED, OK).run() is OK
    assert caplog.records == []


def test_the_error_says_for_how_long_it_was_tried() -> None:
    with pytest.raises(NotReachable, match=r"http://test \(refused; tried for 2\d seconds\)"):
        Stepped(SUBMIT, REFUSED).run()

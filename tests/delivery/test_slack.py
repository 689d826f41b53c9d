"""The slack target, against a receiver on loopback."""

from __future__ import annotations

import json

from everbeat.core.errors import FieldError
from everbeat.core.message_targets import SlackTarget
from everbeat.core.target_secrets import redaction_errors, shown_target, with_stored_secrets
from everbeat.core.targets import TargetRules, destination_of, target_errors
from everbeat.core.webhook_addresses import PUBLIC_ONLY, parse_webhook_allow
from everbeat.delivery.base import Delivered, HttpOptions, Refused, RetryDelivery, TargetContext
from everbeat.delivery.slack import make_target
from tests.delivery.messages import make_task
from tests.delivery.receiver import Receiver, response

LOCAL = HttpOptions(rules=parse_webhook_allow(["127.0.0.0/8"]))


async def test_it_posts_the_title_and_the_text() -> None:
    payload = json.dumps({"title": "Late: <nightly>", "text": "a & b <!channel>\n<https://evil|ok>"}).encode()
    async with Receiver() as receiver:
        sender = make_target(TargetContext({}, http=LOCAL))
        assert isinstance(await sender.deliver(make_task(SlackTarget(url=receiver.url), payload=payload)), Delivered)
        await sender.close()
    (received,) = receiver.received
    assert (received.method, received.headers["content-type"]) == ("POST", "application/json")
    text = "*Late: &lt;nightly&gt;*\na &amp; b &lt;!channel&gt;\n&lt;https://evil|ok&gt;"
    assert json.loads(received.body) == {"text": text}


async def test_failures_are_those_of_http_without_the_secret_path() -> None:
    async with Receiver(response(503, Retry_After="7")) as receiver:
        sender = make_target(TargetContext({}, http=LOCAL))
        outcome = await sender.deliver(make_task(SlackTarget(url=f"{receiver.url}/T0/confidential")))
        receiver.respond = response(404)
        gone = await sender.deliver(make_task(SlackTarget(url=f"{receiver.url}/T0/confidential")))
        await sender.close()
    assert isinstance(outcome, RetryDelivery)
    assert (outcome.after, outcome.kind) == (7, "status-503")
    assert isinstance(gone, Refused)
    assert "confidential" not in outcome.why + gone.why


async def test_a_private_address_is_refused() -> None:
    sender = make_target(TargetContext({}))
    outcome = await sender.deliver(make_task(SlackTarget(url="http://127.0.0.1:9/")))
    await sender.close()
    assert isinstance(outcome, Refused)
    assert outcome.kind == "address-not-allowed"
    errors = target_errors(SlackTarget(url="http://169.254.169.254/"), TargetRules(webhooks=PUBLIC_ONLY))
    assert [error.field for error in errors] == ["target.url"]


def test_the_path_of_the_url_is_a_secret() -> None:
    stored = SlackTarget(url="https://hooks.example.org/services/T0/confidential?x=1")
    shown = shown_target(stored)
    assert shown == SlackTarget(url="https://hooks.example.org/***")
    assert with_stored_secrets(shown, stored) == stored
    elsewhere = SlackTarget(url="https://elsewhere.example.org/***")
    assert with_stored_secrets(elsewhere, stored) == elsewhere
    (error,) = redaction_errors(elsewhere)
    assert isinstance(error, FieldError)
    assert error.field == "target.url"
    assert redaction_errors(stored) == []
    assert destination_of(stored) == "hooks.example.org"

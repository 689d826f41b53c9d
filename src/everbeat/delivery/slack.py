"""The slack target: posts a message to an incoming webhook of Slack, or of a system with the same format.

It is an http delivery to the URL of the webhook, with the same rules for addresses, limits and retries. The body is
`{"text": …}`, in the markup of Slack. Characters that have a meaning in it are escaped, so that a message cannot mention
people or hide a link. Slack has no way to recognize a message that was sent before: one that is sent again is shown again.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from everbeat.core.deliveries import DeliveryTask
from everbeat.core.message_targets import SlackTarget
from everbeat.core.targets import HttpTarget
from everbeat.delivery.base import DeliveryOutcome, Refused, RetryDelivery, Target, TargetContext
from everbeat.delivery.http import HttpDelivery
from everbeat.delivery.messages import message_text

_encode = msgspec.json.Encoder().encode


class SlackDelivery(HttpDelivery):
    kind = "slack"

    async def deliver(self, task: DeliveryTask) -> DeliveryOutcome:
        spec = task.target
        assert isinstance(spec, SlackTarget)
        request = msgspec.structs.replace(
            task, target=HttpTarget(url=spec.url), payload=_encode(slack_body(task)), callback_url=None, callback_token=None
        )
        return _without_secrets(await super().deliver(request), spec.url)


def slack_body(task: DeliveryTask) -> dict[str, Any]:
    message = message_text(task)
    return {"text": f"*{escaped(message.title)}*\n{escaped(message.text)}"}


def escaped(text: str) -> str:
    """Escape what has a meaning in the markup of Slack: mentions, links and channels are written in angle brackets."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _without_secrets(outcome: DeliveryOutcome, url: str) -> DeliveryOutcome:
    """Remove the path of the URL, which is a secret, from the error of an outcome."""
    parts = urlsplit(url)
    if isinstance(outcome, RetryDelivery | Refused):
        why = outcome.why
        for secret in (url, parts.path.strip("/"), parts.query):
            why = why.replace(secret, "***") if secret else why
        return outcome._replace(why=why)
    return outcome


def make_target(context: TargetContext) -> Target:
    return SlackDelivery(context.http)

"""Amazon SQS: one SendMessage per task. The response of SQS, which has the id of the stored message, is the confirmation.

The body is the payload, and the message headers are message attributes.

- FIFO queues: the deduplication id is the message id, so SQS removes a duplicate that arrives within five minutes. A message
  that is sent again later, for example because SQS was unreachable for longer, is a second message. The message group is the
  `group_id` of the target; without one it is the name of the schedule, so that the ticks of a schedule stay in order, or the
  type of the task.
- Standard queues: SQS removes nothing, and may itself deliver a message more than once. The consumer removes duplicates by the
  attribute `everbeat-task`.

Requests always go to the endpoint of the connection, whatever host the queue URL of a target names: the URL is a parameter of
the request. Its account and name decide, so the policy of the credentials limits which queues tenants can reach.

The client does not retry by itself: the retries of the task are the only ones.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from everbeat.core.broker_targets import SqsTarget, is_fifo
from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryTask, message_headers
from everbeat.delivery.base import ExtraMissing, Refused, RetryDelivery, SettingMissing, Target, TargetContext, option
from everbeat.delivery.brokers import (
    CONFIRM_SECONDS,
    CONNECT_SECONDS,
    BrokerSender,
    Confirmation,
    Connections,
    is_url,
    misconfigured,
    refused,
    unavailable,
)

MAX_MESSAGE_BYTES = 1_048_576  # of SQS, for the body and the attributes; a queue may have a lower limit

# Error codes of SQS about the message or the queue of one target. Others concern the account, the credentials or the service.
_REFUSED = ("InvalidMessageContents", "MessageTooLong", "InvalidParameterValue", "MissingParameter", "InvalidAttributeValue")
_MISCONFIGURED = (
    "NonExistentQueue",
    "QueueDoesNotExist",
    "QueueDeletedRecently",
    "AccessDenied",
    "InvalidAddress",
    "KmsAccessDenied",
)


def make_target(context: TargetContext) -> Target:
    try:
        import aiobotocore.session  # noqa: F401
    except ImportError:
        raise ExtraMissing("sqs", "sqs") from None
    return SqsSender(context)


class MessageTooLarge(Exception):
    """The payload is larger than SQS allows."""


class SqsConnection(NamedTuple):
    client: Any
    stack: AsyncExitStack


class SqsSender(BrokerSender):
    kind = "sqs"

    def __init__(self, context: TargetContext) -> None:
        super().__init__(context)
        for broker in self.brokers.values():
            option(broker, "region", str)
            if "endpoint" in broker.options and not is_url(option(broker, "endpoint", str), "http", "https"):
                raise SettingMissing.of(broker, "endpoint must start with http:// or https://")
            if ("access_key_id" in broker.options) != ("secret_access_key" in broker.options):
                raise SettingMissing.of(broker, "access_key_id and secret_access_key require each other")
        self._connections = Connections(self._open, _close)

    async def _open(self, broker: Broker) -> SqsConnection:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session

        config = AioConfig(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=CONFIRM_SECONDS,
            retries={"total_max_attempts": 1},
            max_pool_connections=option(broker, "max_connections", int, 20),
        )
        stack = AsyncExitStack()
        client = get_session().create_client(
            "sqs",
            config=config,
            region_name=option(broker, "region", str),
            endpoint_url=broker.options.get("endpoint"),
            # Without these, the usual chain applies: variables, profiles, the role of the machine.
            aws_access_key_id=broker.options.get("access_key_id"),
            aws_secret_access_key=broker.options.get("secret_access_key"),
            aws_session_token=broker.options.get("session_token"),
        )
        return SqsConnection(await stack.enter_async_context(client), stack)

    async def send(self, broker: Broker, task: DeliveryTask) -> Confirmation:
        target = task.target
        assert isinstance(target, SqsTarget)
        if len(task.payload) > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(f"a message of SQS has at most {MAX_MESSAGE_BYTES} bytes")
        connection = await self._connections.get(broker)
        request: dict[str, Any] = {
            "QueueUrl": target.queue_url,
            "MessageBody": task.payload.decode(),
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in message_headers(task).items()
            },
        }
        if is_fifo(target):
            request["MessageDeduplicationId"] = task.message_id
            request["MessageGroupId"] = target.group_id or (task.schedule or task.type)[:128]
        elif target.delay_seconds is not None:
            request["DelaySeconds"] = target.delay_seconds
        reply = await connection.client.send_message(**request)
        return Confirmation(reply["MessageId"], {"sequence_number": reply.get("SequenceNumber")})

    def failure(self, broker: Broker, error: Exception) -> RetryDelivery | Refused:
        from botocore.exceptions import BotoCoreError, ClientError

        if isinstance(error, MessageTooLarge):
            return refused(broker, error, "too_large")
        if isinstance(error, BotoCoreError):
            return unavailable(broker, error)
        if not isinstance(error, ClientError):
            return super().failure(broker, error)
        code = str(error.response.get("Error", {}).get("Code", ""))
        if any(code.endswith(one) for one in _REFUSED):
            return refused(broker, error)
        if any(code.endswith(one) for one in _MISCONFIGURED):
            return misconfigured(broker, error, "queue")
        return unavailable(broker, error, "service")

    async def close(self) -> None:
        await self._connections.close()


async def _close(connection: SqsConnection) -> None:
    await connection.stack.aclose()

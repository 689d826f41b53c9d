"""Kafka: one record per task, from an idempotent producer (librdkafka). The confirmation is the acknowledgement of all in-sync
replicas (`acks=all`).

The value of a record is the payload, and its headers are the message headers. The key is that of the target.

The idempotent producer removes the duplicates of its own retries: within one delivery, librdkafka sends until the record is
acknowledged or the time is up, and the broker stores it once. It cannot remove the duplicate of a later delivery of the same
task, for example after an acknowledgement was lost for longer than the delivery may take, or after the node ended between the
acknowledgement and recording it. Such a record has the same header `everbeat-task`, and the consumer removes it.

librdkafka calls back in a thread that polls the producer. The results are passed to the event loop in batches, so that a
thousand acknowledgements are one wake-up.

A delivery that is cancelled leaves its record in the producer's queue, which may still send it: another duplicate with the
same header.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everbeat.core.broker_targets import KafkaTarget
from everbeat.core.brokers import Broker
from everbeat.core.deliveries import DeliveryTask, message_headers
from everbeat.delivery.base import ExtraMissing, Refused, RetryDelivery, SettingMissing, Target, TargetContext, option
from everbeat.delivery.brokers import (
    CONFIRM_SECONDS,
    BrokerSender,
    Confirmation,
    Connections,
    misconfigured,
    refused,
    unavailable,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

POLL_SECONDS = 0.2
# Options of a connection, and their names in librdkafka.
_OPTIONS = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_username": "sasl.username",
    "sasl_password": "sasl.password",
    "ssl_ca_location": "ssl.ca.location",
    "ssl_certificate_location": "ssl.certificate.location",
    "ssl_key_location": "ssl.key.location",
    "ssl_key_password": "ssl.key.password",
    "compression": "compression.type",
    "client_id": "client.id",
}
# What makes a delivery confirmed; `producer` in the settings cannot change it.
_FIXED = {"enable.idempotence": True, "acks": "all"}


def make_target(context: TargetContext) -> Target:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise ExtraMissing("kafka", "kafka") from None
    return KafkaSender(context)


class KafkaProducer:
    """A producer, the thread that polls it, and the acknowledgements that have not reached the event loop."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(configuration)
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._reports: list[tuple[asyncio.Future[Message], KafkaError | None, Message]] = []
        self._is_stopping = False
        self.has_failed = False
        self._thread = threading.Thread(target=self._poll, name="everbeat-kafka-poll", daemon=True)
        self._thread.start()

    async def produce(
        self, topic: str, value: bytes, headers: Sequence[tuple[str, bytes]], key: bytes | None, partition: int
    ) -> Message:
        """Return the acknowledged message. Raises KafkaException or BufferError."""
        future: asyncio.Future[Message] = self._loop.create_future()

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._report(future, error, message)

        self._producer.produce(topic, value, key, partition, on_delivery, headers=list(headers))
        return await future

    def _report(self, future: asyncio.Future[Message], error: KafkaError | None, message: Message) -> None:
        with self._lock:
            self._reports.append((future, error, message))
            is_first = len(self._reports) == 1
        if is_first and not self._is_stopping:
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        from confluent_kafka import KafkaException

        with self._lock:
            reports, self._reports = self._reports, []
        for future, error, message in reports:
            if future.done():
                continue
            if error is None:
                future.set_result(message)
            else:
                self.has_failed |= error.fatal()
                future.set_exception(KafkaException(error))

    def _poll(self) -> None:
        while not self._is_stopping:
            self._producer.poll(POLL_SECONDS)

    async def close(self) -> None:
        self._is_stopping = True
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._thread.join()
        self._producer.purge()
        self._producer.flush(0)


class KafkaSender(BrokerSender):
    kind = "kafka"

    def __init__(self, context: TargetContext) -> None:
        super().__init__(context)
        for broker in self.brokers.values():
            configuration(broker)
        self._connections = Connections(_open, KafkaProducer.close)

    async def send(self, broker: Broker, task: DeliveryTask) -> Confirmation:
        from confluent_kafka import KafkaException

        target = task.target
        assert isinstance(target, KafkaTarget)
        producer = await self._connections.get(broker)
        headers = [(name, value.encode()) for name, value in {**target.headers, **message_headers(task)}.items()]
        key = None if target.key is None else target.key.encode()
        partition = -1 if target.partition is None else target.partition
        try:
            message = await producer.produce(target.topic, task.payload, headers, key, partition)
        except KafkaException as error:
            if producer.has_failed or error.args[0].fatal():
                # An idempotent producer does not recover from a fatal error; the next delivery makes another one.
                await self._connections.drop(broker, producer)
            raise
        offset, number = message.offset(), message.partition()
        return Confirmation(f"{target.topic}-{number}@{offset}", {"topic": target.topic, "partition": number, "offset": offset})

    def failure(self, broker: Broker, error: Exception) -> RetryDelivery | Refused:
        from confluent_kafka import KafkaError, KafkaException

        if isinstance(error, BufferError):
            return unavailable(broker, "the queue of the producer is full", "queue_full")
        if not isinstance(error, KafkaException):
            return super().failure(broker, error)
        found: KafkaError = error.args[0]
        code, text = found.code(), found.str()
        if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD):
            return refused(broker, text, "too_large" if code != KafkaError.INVALID_RECORD else "refused")
        if code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.TOPIC_EXCEPTION,
        ):
            return misconfigured(broker, text, "topic")
        return unavailable(broker, text)

    async def close(self) -> None:
        await self._connections.close()


async def _open(broker: Broker) -> KafkaProducer:
    return KafkaProducer(configuration(broker))


def configuration(broker: Broker) -> dict[str, Any]:
    """Return the configuration of librdkafka for a connection. Raises SettingMissing if an option is missing or wrong."""
    more = option(broker, "producer", dict, {})
    if wrong := sorted(more.keys() & {*_FIXED, "bootstrap.servers"}):
        raise SettingMissing.of(broker, f"producer cannot set {wrong[0]}")
    result = {
        "bootstrap.servers": option(broker, "bootstrap_servers", str),
        "client.id": "everbeat",
        "linger.ms": 5,
        "message.timeout.ms": int(CONFIRM_SECONDS * 1000),
        # An unknown topic is reported within the delivery, instead of as a timeout.
        "topic.metadata.propagation.max.ms": int(CONFIRM_SECONDS * 500),
        "log_level": 0,
        **more,
        **_FIXED,
    }
    for name, theirs in _OPTIONS.items():
        if name in broker.options:
            result[theirs] = option(broker, name, str)
    return result

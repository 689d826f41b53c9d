"""A server process with a connection to every broker, and what the consumers of these brokers have received."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.delivery import test_amqp, test_kafka, test_nats, test_redis, test_sqs
from tests.delivery.messages import Received
from tests.support.kafka_cluster import KafkaCluster
from tests.support.moto_server import MotoServer
from tests.support.nats_server import NatsServer
from tests.support.processes import ServerProcess, free_port
from tests.support.proxy import ProxyThread
from tests.support.rabbitmq import RabbitMq
from tests.support.redis_server import RedisServer


class Brokers(NamedTuple):
    redis: RedisServer
    rabbitmq: RabbitMq
    nats: NatsServer
    kafka: KafkaCluster
    moto: MotoServer


class BrokerFleet:
    """One server with a target at each broker. `name`: of the streams, queues and topics, new for each test.

    The server reaches Redis, RabbitMQ, NATS and SQS through proxies that can delay the confirmations.
    """

    def __init__(self, brokers: Brokers, folder: Path, database_url: str, *, dispatchers: int = 1) -> None:
        self.brokers = brokers
        self.name = f"fleet-{secrets.token_hex(4)}"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.queue_url = ""
        self._folder = folder
        ports = (brokers.redis.port, brokers.rabbitmq.port, brokers.nats.port, brokers.moto.port)
        self.proxies = [ProxyThread("127.0.0.1", port) for port in ports]
        env = {"SQS_SECRET": "test"}
        config = ("--config", str(folder / "everbeat.toml"), "--database-url", database_url)
        port = self.url.rpartition(":")[2]
        self.servers = [ServerProcess("serve", *config, "--port", port, name="server-0", folder=folder, env=env)]
        for number in range(1, dispatchers):
            more = ("--port", str(free_port()), "--roles", "dispatcher,scheduler")
            self.servers.append(ServerProcess("serve", *config, *more, name=f"server-{number}", folder=folder, env=env))

    def start(self) -> None:
        for proxy in self.proxies:
            proxy.__enter__()
        self._prepare()
        (self._folder / "everbeat.toml").write_text(self._settings())
        for server in self.servers:
            server.start()
        self.wait_ready()

    def stop(self) -> None:
        for server in self.servers:
            server.kill9()
        for proxy in self.proxies:
            proxy.__exit__(None, None, None)

    def restart(self, server: ServerProcess) -> None:
        server.kill9()
        server.start()

    def wait_ready(self) -> None:
        self.servers[0].wait_ready(f"{self.url}/readyz", 60)

    def delay(self, seconds: float) -> None:
        """Delay all bytes between the server and the brokers, in each direction."""
        for proxy in self.proxies:
            proxy.proxy.delay_seconds = seconds

    def _prepare(self) -> None:
        self.queue_url = test_sqs.create_queue(self.brokers.moto, self.name)
        self.brokers.kafka.create_topic(self.name, 3)
        asyncio.run(test_nats.add_stream(self.brokers.nats, self.name))
        asyncio.run(test_amqp.declare(self.brokers.rabbitmq, self.name))

    def _settings(self) -> str:
        redis_proxy, rabbitmq, nats, moto = (proxy.port for proxy in self.proxies)
        return f"""
[brokers.redis]
kind = "redis"
url = "redis://127.0.0.1:{redis_proxy}/0"
[brokers.celery]
kind = "celery"
url = "redis://127.0.0.1:{redis_proxy}/0"
[brokers.amqp]
kind = "amqp"
url = "amqp://guest:guest@127.0.0.1:{rabbitmq}/"
[brokers.nats]
kind = "nats"
url = "nats://127.0.0.1:{nats}"
[brokers.sqs]
kind = "sqs"
region = "us-east-1"
endpoint = "http://127.0.0.1:{moto}"
access_key_id = "test"
secret_access_key_env = "SQS_SECRET"
[brokers.kafka]
kind = "kafka"
bootstrap_servers = "{self.brokers.kafka.bootstrap}"
[brokers.kafka.producer]
"message.timeout.ms" = 3000
"""

    def targets(self) -> dict[str, dict[str, Any]]:
        return {
            "redis": {"kind": "redis", "broker": "redis", "stream": self.name},
            "celery": {"kind": "celery", "broker": "celery", "task": "t", "queue": f"{self.name}-celery"},
            "amqp": {"kind": "amqp", "broker": "amqp", "exchange": "", "routing_key": self.name},
            "nats": {"kind": "nats", "broker": "nats", "subject": f"{self.name}.one"},
            "sqs": {"kind": "sqs", "broker": "sqs", "queue_url": self.queue_url},
            "kafka": {"kind": "kafka", "broker": "kafka", "topic": self.name, "key": "one"},
        }

    def submit(self, count: int, first: int = 0) -> dict[str, list[str]]:
        """Submit tasks with consecutive numbers to every target, and return their ids."""
        tasks = [
            {
                "type": kind,
                "target": target,
                "payload": {"number": number},
                "max_attempts": 50,
                "retry": {"kind": "fixed", "base_seconds": 0.2},
            }
            for kind, target in self.targets().items()
            for number in range(first, first + count)
        ]
        ids = post(self.url, "/v1/tasks/batch", {"tasks": tasks})["ids"]
        kinds = list(self.targets())
        return {kind: ids[index * count : (index + 1) * count] for index, kind in enumerate(kinds)}

    def received(self, kind: str) -> list[Received]:
        """Consume what has arrived at one broker, directly and not through a proxy."""
        readers: dict[str, Callable[[], Sequence[Received]]] = {
            "redis": lambda: test_redis.entries(self.brokers.redis, self.name),
            "celery": self._celery_messages,
            "amqp": lambda: asyncio.run(test_amqp.messages(self.brokers.rabbitmq, self.name)),
            "nats": lambda: asyncio.run(test_nats.messages(self.brokers.nats, self.name)),
            "sqs": lambda: test_sqs.messages(self.brokers.moto, self.queue_url),
            "kafka": lambda: asyncio.run(test_kafka.messages(self.brokers.kafka, self.name)),
        }
        return list(readers[kind]())

    def _celery_messages(self) -> list[Received]:
        with redis.Redis.from_url(self.brokers.redis.url) as client:
            found = [json.loads(one) for one in client.lrange(f"{self.name}-celery", 0, -1)]
        return [Received(one["headers"]["id"], decoded_kwargs(one)["number"], {}) for one in found]


def decoded_kwargs(message: dict[str, Any]) -> dict[str, Any]:
    import base64

    kwargs: dict[str, Any] = json.loads(base64.b64decode(message["body"]))[1]
    return kwargs


def post(url: str, path: str, body: Any) -> Any:
    import httpx

    with httpx.Client(trust_env=False, timeout=30) as client:
        response = client.post(url + path, json=body)
        assert response.is_success, response.text
        return response.json()


def get(url: str, path: str) -> Any:
    import httpx

    with httpx.Client(trust_env=False, timeout=30) as client:
        response = client.get(url + path)
        assert response.is_success, response.text
        return response.json()

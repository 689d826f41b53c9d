"""The servers that tests start: unprivileged, restartable with their data, and gone afterwards."""

from __future__ import annotations

import os
import pwd

import pytest

from tests.support.kafka_cluster import KafkaCluster
from tests.support.local_server import LocalServer, ServiceMissing, exchange, find_program
from tests.support.processes import is_alive
from tests.support.redis_server import RedisServer


def pid_of(server: LocalServer) -> int:
    assert server._process is not None
    return server._process.pid


def test_a_server_runs_as_an_unprivileged_user_keeps_its_data_and_ends(redis_server: RedisServer) -> None:
    with RedisServer() as server:
        assert os.stat(f"/proc/{pid_of(server)}").st_uid == (
            pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
        )
        assert exchange(server.port, b"SET key value\r\n").startswith(b"+OK")
        killed = pid_of(server)
        server.kill9()
        assert not is_alive(killed)
        server.start()
        assert exchange(server.port, b"GET key\r\n") == b"$5\r\nvalue\r\n"
        started, folder = pid_of(server), server.folder
    assert not is_alive(started)
    assert not folder.exists()


def test_a_missing_program_says_how_to_install_it() -> None:
    with pytest.raises(ServiceMissing, match=r"no-such-program is not installed: run `make services`"):
        find_program("no-such-program", "run `make services` as root")


def test_a_kafka_broker_that_was_down_keeps_its_records(kafka_cluster: KafkaCluster) -> None:
    from confluent_kafka import Producer

    kafka_cluster.create_topic("kept", 1)
    offsets: list[int | None] = []
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap, "logger": None, "log_level": 0})
    for attempt in range(2):
        producer.produce("kept", b"x", on_delivery=lambda error, message: offsets.append(message.offset()))
        if attempt:
            kafka_cluster.set_down()
            assert producer.flush(0.2) == 1
            kafka_cluster.set_up()
        assert producer.flush(30) == 0
    assert offsets == [0, 1]

"""librdkafka's mock Kafka cluster in a process of its own: several brokers in memory that speak Kafka's protocol.

It proves what clients do: idempotent producers, acknowledgements, retries, consumer groups. It has no disk and no
replication, so it does not prove what a Kafka broker does when it crashes: one that is `down` refuses connections and keeps its
records.

This file is also the process: it loads the library of the wheel confluent-kafka through ctypes, reads one command per line from
its input, and ends when its input ends.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

PRODUCER_TYPE = 0
PRODUCE_API_KEY = 0
ERROR_CODES = {"REQUEST_TIMED_OUT": 7, "NOT_ENOUGH_REPLICAS_AFTER_APPEND": 20}


class KafkaCluster:
    """A context manager that starts the cluster and stops it."""

    def __init__(self, brokers: int = 3) -> None:
        self._brokers = brokers
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = ""

    def __enter__(self) -> Self:
        import confluent_kafka

        (library,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*.so*")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(library), str(self._brokers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.bootstrap = self._reply()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def create_topic(self, name: str, partitions: int = 3) -> None:
        self._send(f"topic {name} {partitions}")

    def set_down(self) -> None:
        """Close the connections of all brokers and refuse new ones."""
        self._send("down")

    def set_up(self) -> None:
        self._send("up")

    def fail_produce_requests(self, error: str, count: int) -> None:
        """Answer the next requests of producers with an error of ERROR_CODES."""
        self._send(f"fail {ERROR_CODES[error]} {count}")

    def _send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        reply = self._reply()
        assert reply == "0", f"{line}: error {reply}"

    def _reply(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        reply = self._process.stdout.readline().strip()
        assert reply, "the mock cluster ended unexpectedly"
        return reply


def serve(library_path: str, brokers: int) -> None:
    library = ctypes.CDLL(library_path)

    def call(name: str, result: Any, *args: Any) -> Any:
        function = getattr(library, name)
        function.restype = result
        return function(*args)

    message = ctypes.create_string_buffer(512)
    client = ctypes.c_void_p(call("rd_kafka_new", ctypes.c_void_p, PRODUCER_TYPE, None, message, ctypes.c_size_t(512)))
    cluster = ctypes.c_void_p(call("rd_kafka_mock_cluster_new", ctypes.c_void_p, client, brokers))
    call("rd_kafka_mock_group_initial_rebalance_delay_ms", None, cluster, ctypes.c_int32(100))
    print(call("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, cluster).decode(), flush=True)

    def each_broker(name: str) -> int:
        return max(int(call(name, ctypes.c_int, cluster, ctypes.c_int32(id_))) for id_ in range(1, brokers + 1))

    def create_topic(topic: str, partitions: str) -> int:
        replicas = min(3, brokers)
        return int(call("rd_kafka_mock_topic_create", ctypes.c_int, cluster, topic.encode(), int(partitions), replicas))

    def fail(code: str, count: str) -> int:
        errors = (ctypes.c_int * int(count))(*[int(code)] * int(count))
        api_key = ctypes.c_int16(PRODUCE_API_KEY)
        call("rd_kafka_mock_push_request_errors_array", None, cluster, api_key, ctypes.c_size_t(int(count)), errors)
        return 0

    commands: dict[str, Callable[..., int]] = {
        "topic": create_topic,
        "down": lambda: each_broker("rd_kafka_mock_broker_set_down"),
        "up": lambda: each_broker("rd_kafka_mock_broker_set_up"),
        "fail": fail,
    }
    for line in sys.stdin:
        verb, *args = line.split()
        print(commands[verb](*args), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

"""`everbeat outbox` and `everbeat relay` as a user types them."""

from __future__ import annotations

import psycopg
import pytest
from click.testing import CliRunner, Result

from everbeat.cli.main import cli
from everbeat.client.errors import NotReachable
from everbeat.outbox.table import install_sql
from tests.outbox.conftest import real_server
from tests.support.postgres import PostgresAdmin
from tests.support.processes import free_port

__all__ = ["real_server"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), env={"EVERBEAT_OUTBOX_URL": ""})


def test_an_outbox_is_installed_filled_moved_and_inspected(postgres_server: PostgresAdmin, real_server: str) -> None:
    name = postgres_server.create_database()
    url = postgres_server.url(name)
    try:
        assert invoke("outbox", "install", "--outbox-url", url).exit_code == 0
        with psycopg.connect(url) as connection:
            for task in ('{"type": "a", "payload": {"order": 1}}', '{"type": "b", "color": "red"}'):
                connection.execute("INSERT INTO everbeat_outbox (order_key, task) VALUES ('k', %s)", [task])
        assert invoke("outbox", "status", "--outbox-url", url).output.startswith("2 rows wait, the oldest for 0 s; 0 rows")
        arguments = ("relay", "--once", "--outbox-url", url, "--log-level", "error")
        offline = invoke(*arguments, "--url", f"http://127.0.0.1:{free_port()}")
        assert isinstance(offline.exception, NotReachable)
        moved = invoke(*arguments, "--url", real_server)
        assert moved.exit_code == 0, moved.output
        assert "2 rows moved" in moved.output
        assert invoke("outbox", "status", "--outbox-url", url).output == "0 rows wait; 1 rows were rejected\n"
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT error FROM everbeat_outbox_rejected").fetchone()
        assert row is not None
        assert "color" in row[0]
    finally:
        postgres_server.drop_database(name)


def test_the_sql_is_printed_for_a_migration() -> None:
    assert invoke("outbox", "sql").output == install_sql()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("outbox", "status"), "--outbox-url or EVERBEAT_OUTBOX_URL"),
        (("outbox", "install", "--outbox-url", "sqlite:///x.db"), "as postgresql://"),
        (("relay", "--once", "--url", "http://127.0.0.1:1"), "--outbox-url or EVERBEAT_OUTBOX_URL"),
        (("relay", "--url", "sqlite:///x.db"), "--url must be a server"),
        (("relay", "--batch-size", "0"), "--batch-size"),
    ],
)
def test_wrong_usage_is_a_clear_error(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output

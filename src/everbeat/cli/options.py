"""Options shared by commands; each one is a setting, so its name, variable and file key agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

DATABASE_URL = click.option(
    "--database-url", help="sqlite:///file.db or postgresql://user:password@host/database  [EVERBEAT_DATABASE_URL]"
)
CONFIG = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="A settings file; everbeat.toml if there is one."
)

_SERVER = [
    DATABASE_URL,
    click.option("--host", help="Where to listen; elsewhere than on loopback only with API keys (127.0.0.1)."),
    click.option("--port", type=int, help="The port to listen on (8080)."),
    click.option("--roles", help="What this node does: api, scheduler, or both with a comma between."),
    click.option("--node-name", help="What this node is called in /v1/cluster (the host name)."),
    click.option("--lease-seconds", type=float, help="How long ownership of partitions lasts without renewal (10)."),
    click.option("--horizon-seconds", type=float, help="How far ahead schedules are kept in memory (5)."),
    click.option("--scan-seconds", type=float, help="How often the near future is read anew (2)."),
    click.option("--batch-size", type=int, help="How many ticks fire in one transaction at most (1000)."),
    click.option("--late-after-seconds", type=float, help="A tick later than this is late: catch_up decides (5)."),
    click.option("--catch-up-rate", type=float, help="Catch up at so many times the normal rate; 0: no limit (2)."),
    click.option("--lag-alert-seconds", type=float, help="Warn when the oldest due tick is later than this (5)."),
    click.option("--task-total-seconds", type=float, help="How long a task may be tried in total, all attempts (604800)."),
    click.option("--retention-days", type=float, help="How long the ledger and the history are kept (90)."),
    click.option("--database-connections", type=int, help="Connections for the API, beside the engine's own 7 (8)."),
    click.option("--database-timeout-seconds", type=float, help="Deadline of one database call (10)."),
    click.option("--database-notices/--no-database-notices", default=None, help="Use LISTEN/NOTIFY (yes)."),
    click.option("--database-pooling", help="session, or transaction behind PgBouncer's transaction mode (session)."),
    click.option("--database-listen-url", help="Where to LISTEN instead: PostgreSQL itself, past the pooler."),
    click.option("--blob-url", help="Where payloads above 64 KiB are kept: file:///folder or s3://bucket/prefix."),
    click.option("--blob-endpoint", help="The address of an S3-compatible server, if it is not Amazon's."),
    click.option("--auth", help="keys: needed; off: not, on loopback only; auto: if the database has any (auto)."),
    click.option("--admin-key-file", help="The first admin key: taken from this file, or made and written to it."),
    click.option("--tls-certificate", help="A PEM file with the certificate and those between it and its authority."),
    click.option("--tls-key", help="A PEM file with the key of the certificate."),
    click.option("--tls-client-ca", help="A PEM file with authorities; clients need a certificate of one of them."),
    click.option("--key-requests-per-second", type=float, help="Requests of one key; 0: no limit (2000 with keys)."),
    click.option("--address-requests-per-second", type=float, help="Requests of one address; 0: no limit (4000 with keys)."),
    click.option("--bad-keys-per-second", type=float, help="Wrong keys of one address; 0: no limit (10 with keys)."),
    click.option("--trusted-proxies", help="Networks whose X-Forwarded-For is believed, with commas between."),
    click.option("--max-connections", type=int, help="How many connections are accepted at once (20000)."),
    click.option("--header-deadline-seconds", type=float, help="A request's head must arrive within this (15)."),
    click.option("--body-deadline-seconds", type=float, help="A request's body must arrive within this (30)."),
    click.option("--log-level", help="debug, info, warning or error (info)."),
    click.option("--log-format", help="console or json."),
    CONFIG,
]


def server_options(command: Command) -> Command:
    for option in reversed(_SERVER):
        command = option(command)
    return command

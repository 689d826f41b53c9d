"""Options shared by commands. Each is a setting and has the name of its environment variable and file key."""

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
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="A settings file (everbeat.toml, if it exists)."
)

_SERVER = [
    DATABASE_URL,
    click.option("--host", help="The address to listen on; other than loopback requires API keys (127.0.0.1)."),
    click.option("--port", type=int, help="The port to listen on (8080)."),
    click.option("--roles", help="api, scheduler and dispatcher, separated by commas (all)."),
    click.option("--node-name", help="The name of this node in /v1/cluster (the host name)."),
    click.option("--lease-seconds", type=float, help="How long ownership of partitions lasts without renewal (10)."),
    click.option("--horizon-seconds", type=float, help="How far ahead schedules are kept in memory (5)."),
    click.option("--scan-seconds", type=float, help="How often due schedules are read from the database (2)."),
    click.option("--batch-size", type=int, help="Maximum number of ticks fired in one transaction (1000)."),
    click.option("--late-after-seconds", type=float, help="A tick older than this is late; its catch_up policy applies (5)."),
    click.option("--catch-up-rate", type=float, help="Catch up at this multiple of the normal rate; 0: no limit (2)."),
    click.option("--alert-interval-seconds", type=float, help="How often alert rules are evaluated (5)."),
    click.option("--audit-interval-seconds", type=float, help="How often the auditor runs (15)."),
    click.option("--heartbeat-url", help="A service outside that expects heartbeats, such as Healthchecks."),
    click.option("--heartbeat-interval-seconds", type=float, help="How often a heartbeat is sent (60)."),
    click.option("--lag-alert-seconds", type=float, help="Log a warning if the oldest due tick is later than this (5)."),
    click.option(
        "--behind-after-seconds",
        type=float,
        help="A node that fires later than this for longer than a lease gives partitions to nodes that keep up (1).",
    ),
    click.option("--task-total-seconds", type=float, help="Total time limit of a task over all attempts (604800)."),
    click.option("--retention-days", type=float, help="How long the ledger and the history are kept (90)."),
    click.option("--ledger-retention-days", type=float, help="How long the ledger is kept (retention_days)."),
    click.option("--history-retention-days", type=float, help="How long the history is kept (retention_days)."),
    click.option("--audit-retention-days", type=float, help="How long the daily counts of the ledger are kept (400)."),
    click.option("--audit-log-retention-days", type=float, help="How long the audit log is kept (400)."),
    click.option("--dead-letter-retention-days", type=float, help="How long dead letters are kept (until they are purged)."),
    click.option(
        "--database-connections", type=int, help="Database connections for the API, in addition to 7 for the engine (8)."
    ),
    click.option("--database-timeout-seconds", type=float, help="Deadline of each database call (10)."),
    click.option("--database-notices/--no-database-notices", default=None, help="Use LISTEN/NOTIFY (yes)."),
    click.option("--database-pooling", help="session, or transaction for PgBouncer's transaction mode (session)."),
    click.option("--database-listen-url", help="Direct URL of PostgreSQL for LISTEN, bypassing the pooler."),
    click.option("--migrate/--no-migrate", default=None, help="Migrate an older database at start (no; with dev: yes)."),
    click.option("--blob-url", help="Where payloads above 64 KiB are kept: file:///folder or s3://bucket/prefix."),
    click.option("--blob-endpoint", help="The address of an S3-compatible server other than Amazon's."),
    click.option(
        "--archive-url", help="Where months are archived before they are removed: file:///folder or s3://bucket/prefix."
    ),
    click.option("--archive-endpoint", help="The address of an S3-compatible server for the archive."),
    click.option("--otlp-endpoint", help="An OpenTelemetry collector to which traces are exported (OTLP over HTTP)."),
    click.option("--trace-ratio", type=float, help="The part of the traces that is exported, 0 to 1."),
    click.option("--auth", help="keys: required; off: not required, loopback only; auto: if the database has any (auto)."),
    click.option("--admin-key-file", help="A file with the first admin key; created with a new key if it does not exist."),
    click.option("--tls-certificate", help="A PEM file with the certificate and its intermediate certificates."),
    click.option("--tls-key", help="A PEM file with the private key of the certificate."),
    click.option("--tls-client-ca", help="A PEM file with authorities; clients need a certificate of one of them."),
    click.option("--key-requests-per-second", type=float, help="Request limit per key; 0: no limit (2000 with keys)."),
    click.option("--address-requests-per-second", type=float, help="Request limit per address; 0: no limit (4000 with keys)."),
    click.option("--bad-keys-per-second", type=float, help="Limit of invalid keys per address; 0: no limit (10 with keys)."),
    click.option("--max-polls-per-key", type=int, help="Maximum number of open long polls per key and node (10000)."),
    click.option("--check-pings-per-second", type=float, help="Limit of pings per check and node; 0: no limit (1)."),
    click.option("--trusted-proxies", help="Networks whose X-Forwarded-For is trusted, separated by commas."),
    click.option("--max-connections", type=int, help="Maximum number of open connections (20000)."),
    click.option("--max-connections-per-address", type=int, help="Maximum number of connections of one address (half of all)."),
    click.option("--header-deadline-seconds", type=float, help="Deadline for the head of a request (15)."),
    click.option("--body-deadline-seconds", type=float, help="Deadline for the body of a request (30)."),
    click.option("--public-url", help="Where clients reach this server, for callbacks and pings (on loopback: its address)."),
    click.option("--webhook-allow", help="Networks and hosts that webhooks may be sent to although they are not public."),
    click.option("--webhook-timeout-seconds", type=float, help="Total timeout of a webhook (30)."),
    click.option("--webhook-max-concurrent", type=int, help="Maximum number of webhooks at a time to one host (100)."),
    click.option("--webhook-ca-file", help="A PEM file with further authorities for the certificates of destinations."),
    click.option("--webhook-client-certificate", help="A PEM file with the client certificate that webhooks present."),
    click.option("--webhook-client-key", help="A PEM file with the private key of the client certificate."),
    click.option("--slo-fire-seconds", type=float, help="A tick that fires later than this is too late (1)."),
    click.option("--slo-fire-target", type=float, help="The part of ticks that has to fire in time (0.999)."),
    click.option("--slo-pickup-seconds", type=float, help="A task that is ready for longer than this waits too long (5)."),
    click.option("--slo-pickup-target", type=float, help="The part of claims that has to be in time (0.99)."),
    click.option("--slo-availability-target", type=float, help="The part of minutes that have to be available (0.999)."),
    click.option("--slo-success-target", type=float, help="The part of tasks that has to complete (0.99)."),
    click.option("--delivery-concurrency", type=int, help="Maximum number of deliveries at a time on this node (1000)."),
    click.option("--log-level", help="debug, info, warning or error (info)."),
    click.option("--log-format", help="console or json."),
    CONFIG,
]


def server_options(command: Command) -> Command:
    for option in reversed(_SERVER):
        command = option(command)
    return command

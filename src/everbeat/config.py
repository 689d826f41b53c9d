"""Settings: from flags, EVERBEAT_* variables, everbeat.toml and the defaults below, in this order; validated at start."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from everbeat.core.addresses import parse_networks
from everbeat.core.brokers import Broker
from everbeat.core.database_urls import database_url_error, is_postgres
from everbeat.core.errors import InvalidInput, SettingsError
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.retention import RetentionPeriods
from everbeat.core.webhook_addresses import WebhookRules, parse_webhook_allow

PREFIX = "EVERBEAT_"
FILE_NAME = "everbeat.toml"
_SQLITE = "sqlite:///"

Role = Literal["api", "scheduler", "dispatcher"]
Auth = Literal["auto", "keys", "off"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a server. docs/reference/settings.md explains them."""

    database_url: str = "sqlite:///everbeat.db"
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 8080
    roles: tuple[Role, ...] = ("api", "scheduler", "dispatcher")
    node_name: str = msgspec.field(default_factory=socket.gethostname)
    lease_seconds: Annotated[float, msgspec.Meta(ge=1, le=300)] = 10.0
    horizon_seconds: Annotated[float, msgspec.Meta(ge=1, le=300)] = 5.0
    scan_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 2.0
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    late_after_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=300)] = 5.0
    catch_up_rate: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 2.0
    audit_interval_seconds: Annotated[float, msgspec.Meta(ge=0.2, le=300)] = 15.0
    heartbeat_url: str | None = None
    heartbeat_interval_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
    lag_alert_seconds: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    alert_interval_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=300)] = 5.0
    behind_after_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=300)] = 1.0
    task_total_seconds: Annotated[float, msgspec.Meta(ge=60, le=366 * 86_400)] = 7 * 86_400.0
    retention_days: Annotated[float, msgspec.Meta(ge=1, le=36_500)] = 90.0
    ledger_retention_days: Annotated[float, msgspec.Meta(ge=1, le=36_500)] | None = None
    history_retention_days: Annotated[float, msgspec.Meta(ge=1, le=36_500)] | None = None
    audit_retention_days: Annotated[float, msgspec.Meta(ge=7, le=36_500)] = 400.0
    audit_log_retention_days: Annotated[float, msgspec.Meta(ge=30, le=36_500)] = 400.0
    dead_letter_retention_days: Annotated[float, msgspec.Meta(ge=1, le=36_500)] | None = None
    database_connections: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    database_timeout_seconds: Annotated[float, msgspec.Meta(ge=0.5, le=300)] = 10.0
    database_notices: bool = True
    database_pooling: Literal["session", "transaction"] = "session"
    database_listen_url: str | None = None
    migrate: bool = False
    blob_url: str | None = None
    blob_endpoint: str | None = None
    archive_url: str | None = None
    archive_endpoint: str | None = None
    header_deadline_seconds: Annotated[float, msgspec.Meta(ge=1, le=300)] = 15.0
    body_deadline_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 30.0
    write_deadline_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 30.0
    auth: Auth = "auto"
    admin_key_file: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    key_requests_per_second: Annotated[float, msgspec.Meta(ge=0)] | None = None
    address_requests_per_second: Annotated[float, msgspec.Meta(ge=0)] | None = None
    bad_keys_per_second: Annotated[float, msgspec.Meta(ge=0)] | None = None
    max_polls_per_key: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    check_pings_per_second: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 1.0
    trusted_proxies: tuple[str, ...] = ()
    max_connections: Annotated[int, msgspec.Meta(ge=64, le=1_000_000)] = 20_000
    max_connections_per_address: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "json"
    otlp_endpoint: str | None = None
    trace_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    public_url: str | None = None
    slo_fire_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 1.0
    slo_fire_target: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] = 0.999
    slo_pickup_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 5.0
    slo_pickup_target: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] = 0.99
    slo_availability_target: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] = 0.999
    slo_success_target: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] = 0.99
    delivery_concurrency: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    webhook_allow: tuple[str, ...] = ()
    webhook_timeout_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 30.0
    webhook_max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    webhook_ca_file: str | None = None
    webhook_client_certificate: str | None = None
    webhook_client_key: str | None = None
    brokers: dict[str, Broker] = {}

    @property
    def lease_margin_seconds(self) -> float:
        return min(1.0, self.lease_seconds / 10)

    @property
    def lease_timeout_seconds(self) -> float:
        """The timeout of one renewal. For every lease: lease >= renewal interval + two attempts + margin."""
        return min(2.5, (self.lease_seconds * 2 / 3 - self.lease_margin_seconds) / 2)

    @property
    def idle_transaction_seconds(self) -> float:
        """After what time the database ends a transaction that its node has left idle, with its row locks.

        A lease is renewed every third of its duration, so the transaction of a frozen node ends before the lease does.
        """
        return self.lease_seconds / 3

    @property
    def retention_periods(self) -> RetentionPeriods:
        return RetentionPeriods.of_days(
            self.retention_days,
            ledger=self.ledger_retention_days,
            history=self.history_retention_days,
            audit_log=self.audit_log_retention_days,
            dead_letters=self.dead_letter_retention_days,
        )

    @property
    def blob_location(self) -> str | None:
        """Where large payloads are stored. The default for SQLite is next to the file; several machines need a shared place."""
        if self.blob_url is not None or not self.database_url.startswith(_SQLITE):
            return self.blob_url
        path = Path(self.database_url.removeprefix(_SQLITE)).absolute()
        return path.with_name(f"{path.stem}-blobs").as_uri()

    @property
    def scheme(self) -> str:
        return "http" if self.tls_certificate is None else "https"

    @property
    def callback_url(self) -> str | None:
        """The address of this server in callbacks. A server on loopback is reached by the address that it listens on."""
        if self.public_url is not None or not self.is_loopback:
            return None if self.public_url is None else self.public_url.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def webhook_rules(self) -> WebhookRules:
        return parse_webhook_allow(self.webhook_allow)._replace(has_callbacks=self.callback_url is not None)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_exposed(path: Path) -> bool:
    """Return whether other users than the owner can read the file."""
    return os.name == "posix" and bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


_CHOICES = {
    "roles": "api, scheduler and dispatcher, separated by commas",
    "log_level": "debug, info, warning or error",
    "log_format": "console or json",
    "auth": "auto, keys or off",
    "database_notices": "true or false",
    "migrate": "true or false",
    "database_pooling": "session or transaction",
}


_LISTS = ("roles", "trusted_proxies", "webhook_allow")
_TABLES = ("brokers",)  # only in the settings file


def load_settings(
    flags: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """Load the settings from all sources. Errors name the invalid setting and say what is valid."""
    merged: dict[str, Any] = dict(defaults or {})
    merged.update(_from_file(file))
    merged.update(_from_environment(environment))
    merged.update({name: value for name, value in flags.items() if value is not None})
    for name in _LISTS:
        if isinstance(merged.get(name), str):
            merged[name] = [one.strip() for one in merged[name].split(",") if one.strip()]
    brokers = load_brokers(merged.pop("brokers", {}), environment)
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"settings: {_plain(str(error))}") from None
    return _checked(msgspec.structs.replace(settings, brokers=brokers))


def load_brokers(tables: Any, environment: Mapping[str, str] = os.environ) -> dict[str, Broker]:
    """Return the connections of the `[brokers.NAME]` tables. Options whose name ends in _env or _file are read from there."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingsError("settings: brokers must be tables: [brokers.NAME]")
    return {name: _broker(name, dict(table), environment) for name, table in tables.items()}


def _broker(name: str, table: dict[str, Any], environment: Mapping[str, str]) -> Broker:
    if not is_name(name):
        raise SettingsError(f"settings: [brokers.{name[:100]}]: the name {NAME_MESSAGE}")
    kind = table.pop("kind", None)
    if not isinstance(kind, str) or not is_name(kind):
        raise SettingsError(f'settings: [brokers.{name}]: kind is required, such as kind = "kafka"')
    tenants = table.pop("tenants", None)
    if tenants is not None and not (isinstance(tenants, list) and all(isinstance(one, str) for one in tenants)):
        raise SettingsError(f"settings: [brokers.{name}]: tenants must be a list of names of tenants")
    options: dict[str, Any] = {}
    for key, value in table.items():
        option, found = key, value
        if key.endswith("_env"):
            option, found = key.removesuffix("_env"), environment.get(str(value))
        elif key.endswith("_file"):
            option, found = key.removesuffix("_file"), _secret_from_file(name, key, str(value))
        if found is None:
            raise SettingsError(f"settings: [brokers.{name}]: {key}: the environment variable {value} is not set")
        if option in options:
            raise SettingsError(f"settings: [brokers.{name}]: {option} is given twice")
        options[option] = found
    return Broker(name=name, kind=kind, options=options, tenants=None if tenants is None else frozenset(tenants))


def _secret_from_file(broker: str, key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings: [brokers.{broker}]: {key}: cannot read {path}: {error}") from None


def _checked(settings: Settings) -> Settings:
    if not settings.roles:
        raise SettingsError("settings: roles is empty; use api, scheduler and dispatcher")
    if settings.auth == "off" and not settings.is_loopback:
        raise SettingsError(
            f"settings: host is {settings.host}, but without API keys Everbeat listens on loopback only; use --auth keys"
        )
    _check_tls(settings)
    _check_webhooks(settings)
    try:
        parse_networks(settings.trusted_proxies)
    except InvalidInput as error:
        raise SettingsError(f"settings: {error}") from None
    if settings.scan_seconds > settings.horizon_seconds:
        raise SettingsError("settings: scan_seconds must not be longer than horizon_seconds")
    _check_database_urls(settings)
    _check_blobs(settings)
    _check_traces(settings)
    return settings


def _check_database_urls(settings: Settings) -> None:
    has_default_database = bool(os.environ.get("PGDATABASE"))
    for name in ("database_url", "database_listen_url"):
        url = getattr(settings, name)
        if url is None:
            continue
        if message := database_url_error(url, has_default_database=has_default_database):
            raise SettingsError(f"settings: {name} {message}")
        if name == "database_listen_url" and not is_postgres(url):
            raise SettingsError("settings: database_listen_url must start with postgresql://")


def _check_tls(settings: Settings) -> None:
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise SettingsError("settings: tls_certificate and tls_key require each other; one of them is missing")
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        raise SettingsError("settings: tls_client_ca requires tls_certificate and tls_key")
    for name in ("tls_certificate", "tls_key", "tls_client_ca"):
        file = getattr(settings, name)
        if file is not None and not Path(file).is_file():
            raise SettingsError(f"settings: {name}: there is no file {file}")


def _check_webhooks(settings: Settings) -> None:
    if (settings.webhook_client_certificate is None) != (settings.webhook_client_key is None):
        raise SettingsError("settings: webhook_client_certificate and webhook_client_key require each other; one is missing")
    for name in ("webhook_ca_file", "webhook_client_certificate", "webhook_client_key"):
        file = getattr(settings, name)
        if file is not None and not Path(file).is_file():
            raise SettingsError(f"settings: {name}: there is no file {file}")
    try:
        parse_webhook_allow(settings.webhook_allow)
    except ValueError as error:
        raise SettingsError(f"settings: webhook_allow: {error}") from None
    if settings.heartbeat_url is not None and not re.fullmatch(r"https?://[^/?#\s]+(/[^#\s]*)?", settings.heartbeat_url):
        raise SettingsError("settings: heartbeat_url must be http://host/path or https://host/path")
    if settings.public_url is not None and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", settings.public_url):
        raise SettingsError("settings: public_url must be http://host or https://host, without credentials and query")


def _check_traces(settings: Settings) -> None:
    if settings.otlp_endpoint is not None and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", settings.otlp_endpoint):
        raise SettingsError("settings: otlp_endpoint must be http://host:port or https://host:port, usually with the port 4318")


def _check_blobs(settings: Settings) -> None:
    for name in ("blob", "archive"):
        url, endpoint = getattr(settings, f"{name}_url"), getattr(settings, f"{name}_endpoint")
        if url is not None and not re.fullmatch(r"file:///[^?#]+|s3://[^/?#@]+(/[^?#]*)?", url):
            raise SettingsError(f"settings: {name}_url must be file:///folder or s3://bucket/prefix")
        if endpoint is None:
            continue
        if url is None or not url.startswith("s3://"):
            raise SettingsError(f"settings: {name}_endpoint requires a {name}_url that starts with s3://")
        if not re.fullmatch(r"https?://[^/?#@]+/?", endpoint):
            raise SettingsError(f"settings: {name}_endpoint must be http://host:port or https://host:port, without credentials")


def _from_file(file: Path | None) -> dict[str, Any]:
    path = file if file is not None else Path(FILE_NAME)
    if not path.exists():
        if file is not None:
            raise SettingsError(f"settings: there is no file {file}")
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings: {path} is not valid TOML: {error}") from None
    unknown = sorted(found.keys() - set(Settings.__struct_fields__))
    if unknown:
        raise SettingsError(f"settings: {path} has the unknown key {unknown[0]}; docs/reference/settings.md lists them")
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    known = {f"{PREFIX}{name.upper()}": name for name in Settings.__struct_fields__ if name not in _TABLES}
    return {known[name]: value for name, value in environment.items() if name in known}


def _plain(message: str) -> str:
    """Put the name of the setting in front of a msgspec message: `Expected int - at $.port` becomes `port: Expected int`."""
    text, _, path = message.partition(" - at `$.")
    if not path:
        return text
    name = path.rstrip("`").partition("[")[0]
    choices = _CHOICES.get(name)
    return f"{name}: {text}" + (f"; use {choices}" if choices else "")

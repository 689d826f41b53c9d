"""Settings: flags, then EVERBEAT_* variables, then everbeat.toml, then the defaults here; checked at start."""

from __future__ import annotations

import ipaddress
import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from everbeat.core.errors import SettingsError

PREFIX = "EVERBEAT_"
FILE_NAME = "everbeat.toml"

Role = Literal["api", "scheduler"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting of a server; docs/reference/settings.md explains them."""

    database_url: str = "sqlite:///everbeat.db"
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 8080
    roles: tuple[Role, ...] = ("api", "scheduler")
    node_name: str = msgspec.field(default_factory=socket.gethostname)
    lease_seconds: Annotated[float, msgspec.Meta(ge=1, le=300)] = 10.0
    horizon_seconds: Annotated[float, msgspec.Meta(ge=1, le=300)] = 5.0
    scan_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 2.0
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    late_after_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=300)] = 5.0
    catch_up_rate: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 2.0
    lag_alert_seconds: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    task_total_seconds: Annotated[float, msgspec.Meta(ge=60, le=366 * 86_400)] = 7 * 86_400.0
    retention_days: Annotated[float, msgspec.Meta(ge=1, le=36_500)] = 90.0
    database_connections: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    database_timeout_seconds: Annotated[float, msgspec.Meta(ge=0.5, le=300)] = 10.0
    database_notices: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "json"

    @property
    def lease_margin_seconds(self) -> float:
        return min(1.0, self.lease_seconds / 10)

    @property
    def lease_timeout_seconds(self) -> float:
        """How long one renewal may take: lease >= renewal interval + two attempts + margin, whatever the lease is."""
        return min(2.5, (self.lease_seconds * 2 / 3 - self.lease_margin_seconds) / 2)

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


_CHOICES = {
    "roles": "api, scheduler or both with a comma between",
    "log_level": "debug, info, warning or error",
    "log_format": "console or json",
    "database_notices": "true or false",
}


def load_settings(
    flags: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from all sources; a wrong one names itself, its source and what would be right."""
    merged: dict[str, Any] = dict(defaults or {})
    merged.update(_from_file(file))
    merged.update(_from_environment(environment))
    merged.update({name: value for name, value in flags.items() if value is not None})
    if isinstance(merged.get("roles"), str):
        merged["roles"] = [role.strip() for role in merged["roles"].split(",") if role.strip()]
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"settings: {_plain(str(error))}") from None
    return _checked(settings)


def _checked(settings: Settings) -> Settings:
    if not settings.roles:
        raise SettingsError("settings: roles is empty; use api, scheduler or both")
    if not settings.is_loopback:
        raise SettingsError(
            f"settings: host is {settings.host}, but without authentication Everbeat listens on loopback only; "
            "use 127.0.0.1 and put a proxy that authenticates in front"
        )
    if settings.scan_seconds > settings.horizon_seconds:
        raise SettingsError("settings: scan_seconds must not be longer than horizon_seconds")
    if not settings.database_url.startswith(("sqlite:///", "postgresql://", "postgres://")):
        raise SettingsError("settings: database_url must begin with sqlite:/// or postgresql://")
    return settings


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
    known = {f"{PREFIX}{name.upper()}": name for name in Settings.__struct_fields__}
    return {known[name]: value for name, value in environment.items() if name in known}


def _plain(message: str) -> str:
    """msgspec's words with the setting's name in front: `Expected int - at $.port` becomes `port: Expected int`."""
    text, _, path = message.partition(" - at `$.")
    if not path:
        return text
    name = path.rstrip("`").partition("[")[0]
    choices = _CHOICES.get(name)
    return f"{name}: {text}" + (f"; use {choices}" if choices else "")

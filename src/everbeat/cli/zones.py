"""The time zone of this machine, for times without a zone."""

from __future__ import annotations

import os
from pathlib import Path
from zoneinfo import ZoneInfo

from everbeat.core.errors import InvalidInput
from everbeat.core.zones import load_zone

_LOCALTIME = Path("/etc/localtime")


def find_local_zone() -> str | None:
    """Return the IANA name of this machine's time zone; None if it cannot be found."""
    names = [os.environ.get("TZ", "").removeprefix(":")]
    if _LOCALTIME.is_symlink():
        names.append(str(_LOCALTIME.resolve()).rpartition("zoneinfo/")[2])
    elif not _LOCALTIME.exists():
        names.append("UTC")
    for name in filter(None, names):
        try:
            load_zone(name)
        except InvalidInput:
            continue
        return name
    return None


def default_zone() -> ZoneInfo:
    """Return the zone in which times without a zone are read: that of this machine, or UTC."""
    return load_zone(find_local_zone() or "UTC")

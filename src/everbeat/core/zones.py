"""Time zones: loads them by IANA name, rejects abbreviations and offsets, and finds the changes of their offsets."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from everbeat.core.errors import InvalidInput

MAX_NAME_LENGTH = 64

# The tz database contains some of these (EST, CET, EST5EDT, …), but there they mean a fixed offset or the old rules of one
# country. The author of a schedule rarely wants that.
ABBREVIATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ACDT": ("Australia/Adelaide",),
        "ACST": ("Australia/Adelaide", "Australia/Darwin"),
        "ADT": ("America/Halifax",),
        "AEDT": ("Australia/Sydney",),
        "AEST": ("Australia/Sydney", "Australia/Brisbane"),
        "AKDT": ("America/Anchorage",),
        "AKST": ("America/Anchorage",),
        "ART": ("America/Argentina/Buenos_Aires",),
        "AST": ("America/Halifax", "America/Puerto_Rico"),
        "AWST": ("Australia/Perth",),
        "BRT": ("America/Sao_Paulo",),
        "BST": ("Europe/London", "Asia/Dhaka"),
        "CAT": ("Africa/Maputo",),
        "CDT": ("America/Chicago",),
        "CEST": ("Europe/Berlin", "Europe/Paris"),
        "CET": ("Europe/Berlin", "Europe/Paris"),
        "CST": ("America/Chicago", "Asia/Shanghai"),
        "CST6CDT": ("America/Chicago",),
        "EAT": ("Africa/Nairobi",),
        "EDT": ("America/New_York",),
        "EEST": ("Europe/Helsinki", "Europe/Athens"),
        "EET": ("Europe/Helsinki", "Africa/Cairo"),
        "EST": ("America/New_York",),
        "EST5EDT": ("America/New_York",),
        "HDT": ("America/Adak",),
        "HKT": ("Asia/Hong_Kong",),
        "HST": ("Pacific/Honolulu",),
        "ICT": ("Asia/Bangkok",),
        "IDT": ("Asia/Jerusalem",),
        "IST": ("Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"),
        "JST": ("Asia/Tokyo",),
        "KST": ("Asia/Seoul",),
        "MDT": ("America/Denver",),
        "MEST": ("Europe/Berlin",),
        "MESZ": ("Europe/Berlin",),
        "MET": ("Europe/Berlin",),
        "MEZ": ("Europe/Berlin",),
        "MSD": ("Europe/Moscow",),
        "MSK": ("Europe/Moscow",),
        "MST": ("America/Denver", "America/Phoenix"),
        "MST7MDT": ("America/Denver",),
        "NDT": ("America/St_Johns",),
        "NST": ("America/St_Johns",),
        "NZDT": ("Pacific/Auckland",),
        "NZST": ("Pacific/Auckland",),
        "PDT": ("America/Los_Angeles",),
        "PHT": ("Asia/Manila",),
        "PKT": ("Asia/Karachi",),
        "PST": ("America/Los_Angeles",),
        "PST8PDT": ("America/Los_Angeles",),
        "SAST": ("Africa/Johannesburg",),
        "SGT": ("Asia/Singapore",),
        "SST": ("Pacific/Pago_Pago",),
        "TRT": ("Europe/Istanbul",),
        "WAT": ("Africa/Lagos",),
        "WEST": ("Europe/Lisbon",),
        "WET": ("Europe/Lisbon",),
        "WIB": ("Asia/Jakarta",),
        "Z": ("UTC",),
    }
)

_NOT_ZONES = frozenset({"Factory", "localtime", "posixrules"})
_NAME = re.compile(r"[A-Za-z0-9_+\-/]+")
_LOOSE_NAME = re.compile(r"[A-Za-z0-9_+\-/: .]+")
_OFFSET = re.compile(r"(?:UTC|GMT)? ?([+-])(\d{1,2})(?::?(\d{2}))?(?::?\d{2})?", re.IGNORECASE)

# Well below the shortest period with one offset in modern times: a week of daylight saving time in Recife in October 2000.
_PROBE_STEP_SECONDS = 3 * 86400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# One year from either end of the range of datetime, so that no conversion to local time overflows.
_FIRST_YEAR, _LAST_YEAR = 2, 9998
_FINGERPRINT_YEARS = range(2020, 2061)


class Transition(NamedTuple):
    """A change of a zone's offset; `at` is the first instant (UTC) with the new offset."""

    at: datetime
    before: timedelta
    after: timedelta


@lru_cache(maxsize=1024)
def load_zone(name: str) -> ZoneInfo:
    """Load a zone by its IANA name. Raises InvalidInput, with a suggestion if there is a similar name."""
    problem = _problem_with(name)
    if problem is not None:
        raise InvalidInput.of("timezone", problem)
    return ZoneInfo(name)


def transitions(zone: ZoneInfo, start: datetime, end: datetime) -> list[Transition]:
    """Return every change of the zone's offset in (start, end], oldest first and exact to the second."""
    first_year = max(start.astimezone(UTC).year, _FIRST_YEAR)
    last_year = min(end.astimezone(UTC).year, _LAST_YEAR)
    years = (_transitions_of_year(zone, year) for year in range(first_year, last_year + 1))
    return [transition for transition in chain.from_iterable(years) if start < transition.at <= end]


def forget_zones() -> None:
    """Read the tz database again for zones that are loaded from now on."""
    ZoneInfo.clear_cache()
    for cached in (load_zone, _known_zones, zone_names, _names_by_key):
        cached.cache_clear()


def fingerprint_of(zone: ZoneInfo) -> str:
    """Return a hash of the offsets of a zone in the years that matter. It does not depend on how its file is encoded."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(str(_offset(zone, _seconds(datetime(_FINGERPRINT_YEARS[0], 1, 1, tzinfo=UTC)))).encode())
    for year in _FINGERPRINT_YEARS:
        # Not cached: these years would replace those in use.
        for change in _transitions_of_year.__wrapped__(zone, year):
            digest.update(f"{change.at.isoformat()} {change.after}".encode())
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _transitions_of_year(zone: ZoneInfo, year: int) -> tuple[Transition, ...]:
    low = _seconds(datetime(year, 1, 1, tzinfo=UTC)) - 1
    end = _seconds(datetime(year + 1, 1, 1, tzinfo=UTC)) - 1
    found = []
    before = _offset(zone, low)
    while low < end:
        high = min(low + _PROBE_STEP_SECONDS, end)
        if _offset(zone, high) != before:
            high = _first_change(zone, low, high, before)
            after = _offset(zone, high)
            found.append(Transition(_instant(high), before, after))
            before = after
        low = high
    return tuple(found)


def _first_change(zone: ZoneInfo, low: int, high: int, before: timedelta) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, seconds: int) -> timedelta:
    offset = _instant(seconds).astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _instant(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(seconds=1)


def _problem_with(name: str) -> str | None:
    if not name:
        return "a time zone is required; use an IANA name such as Europe/Berlin"
    if len(name) > MAX_NAME_LENGTH:
        return f"a time zone name must have at most {MAX_NAME_LENGTH} characters"
    if not _LOOSE_NAME.fullmatch(name):
        return "not a time zone name; use an IANA name such as Europe/Berlin"
    if name in _known_zones():
        return None
    if name.upper() in ABBREVIATIONS:
        use = _either(ABBREVIATIONS[name.upper()])
        return f'"{name}" is an abbreviation, not a time zone; use an IANA name such as {use}'
    if offset := _OFFSET.fullmatch(name):
        return _offset_hint(name, offset)
    if close := _suggestions(name):
        return f'unknown time zone "{name}"; did you mean {_either(close)}?'
    return f'unknown time zone "{name}"; use an IANA name such as Europe/Berlin or America/New_York'


def _offset_hint(name: str, offset: re.Match[str]) -> str:
    sign, hours, minutes = offset.group(1), int(offset.group(2)), int(offset.group(3) or 0)
    message = f'"{name}" is an offset, not a time zone; use an IANA name such as Europe/Berlin'
    if hours == 0 and minutes == 0:
        return f'"{name}" is an offset, not a time zone; use UTC'
    fixed = f"Etc/GMT{'-' if sign == '+' else '+'}{hours}"
    if minutes or fixed not in _known_zones():
        return message
    return f"{message}, or {fixed} for this fixed offset (the sign is reversed there)"


@cache
def _known_zones() -> frozenset[str]:
    """Return all zone names. Names are compared with these, because a case-insensitive file system would open europe/berlin."""
    return frozenset(
        name
        for name in available_timezones()
        if name not in ABBREVIATIONS
        and name not in _NOT_ZONES
        and not name.startswith(("posix/", "right/", "SystemV/"))
        and not _OFFSET.fullmatch(name)
        and _NAME.fullmatch(name)
    )


@cache
def zone_names() -> tuple[str, ...]:
    """Return the names of all zones that a schedule can have."""
    return tuple(sorted(_known_zones()))


@cache
def _names_by_key() -> Mapping[str, tuple[str, ...]]:
    """Return lower-case full names and city names, each with the zones that it may mean."""
    names: dict[str, list[str]] = defaultdict(list)
    for name in sorted(_known_zones(), key=lambda name: (not _is_regional(name), name)):
        for key in {name.lower(), name.rpartition("/")[2].lower()}:
            names[key].append(name)
    return MappingProxyType({key: tuple(matches) for key, matches in names.items()})


def _is_regional(name: str) -> bool:
    return "/" in name and not name.startswith(("Etc/", "US/", "Canada/", "Brazil/", "Mexico/", "Chile/"))


def _suggestions(name: str) -> Sequence[str]:
    key = "_".join(name.lower().split())
    names = _names_by_key()
    exact = [match for match in names.get(key, ()) if match.lower() == key]
    if exact or key in names:
        return (exact or names[key])[:3]
    close = difflib.get_close_matches(key, names, n=3, cutoff=0.85)
    return list(dict.fromkeys(names[match][0] for match in close))


def _either(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} or {names[-1]}"

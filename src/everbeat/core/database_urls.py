"""Database URLs: splits them by host, and says what is wrong with one before a driver sees it. Messages contain no password."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_CHARACTERS = re.compile(r"[\s\x00-\x1f\x7f]")
_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[^\[\]:@/]*")
_FORM = "postgresql://user:password@host:port/database"
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SESSION_ATTRIBUTES = ("any", "primary", "standby", "read-write", "read-only", "prefer-standby")
_ENCODE = "write /, ?, #, @ and % in a user name or password as %2F, %3F, %23, %40 and %25"


def is_postgres(url: str) -> bool:
    return url.startswith(_POSTGRES)


def split_hosts(url: str) -> list[str]:
    """One URL for each host of a URL: `postgresql://user@a:1,b:2/db` becomes two URLs."""
    scheme, _, rest = url.partition("://")
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    return [f"{scheme}://{user}{at}{host}{rest[end:]}" for host in hosts.split(",")]


def database_url_error(url: str, *, has_default_database: bool = False) -> str | None:
    """Return what is wrong with the URL, and what to do. `has_default_database`: the environment names a database."""
    if url.startswith(SQLITE):
        return _sqlite_error(url.removeprefix(SQLITE))
    if not is_postgres(url):
        return "must start with sqlite:/// or postgresql://"
    if _BAD_CHARACTERS.search(url):
        return "must not contain spaces or control characters; write a space as %20"
    if _BAD_PERCENT.search(url):
        return f"has a % without two hexadecimal digits; {_ENCODE}"
    if "#" in url:
        return f"must not contain #; {_ENCODE}"
    for one in split_hosts(url):
        if message := _host_error(one):
            return message
    parts = urlsplit(split_hosts(url)[0])
    options = parse_qs(parts.query, keep_blank_values=True)
    if message := _option_error(options):
        return message
    if not parts.path.strip("/") and not {"dbname", "database"} & options.keys() and not has_default_database:
        return f"names no database; use {_FORM}"
    return None


def _sqlite_error(path: str) -> str | None:
    if not path or path.endswith("/"):
        return "names no file; use sqlite:///everbeat.db, or sqlite:////folder/everbeat.db for an absolute path"
    if "\0" in path or "?" in path or "#" in path:
        return "must be sqlite:/// and a path, without ?, # or options"
    return None


def _host_error(url: str) -> str | None:
    host, colon, port = _split_port(url)
    if not _HOST.fullmatch(host):
        return f"has the host {host[:100]!r}, which is not valid; use {_FORM}, and brackets around an IPv6 address"
    if colon and not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65_535):
        return f"has a port that is not a number from 1 to 65535; use {_FORM}, and {_ENCODE}"
    return None


def _split_port(url: str) -> tuple[str, str, str]:
    _, _, rest = url.partition("://")
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    address = rest[:end].rpartition("@")[2]
    if address.startswith("["):
        host, bracket, rest = address.partition("]")
        return host + bracket, rest[:1], rest[1:]
    host, colon, port = address.partition(":")
    return host, colon, port


def _option_error(options: dict[str, list[str]]) -> str | None:
    for name, allowed in (("sslmode", _SSL_MODES), ("target_session_attrs", _SESSION_ATTRIBUTES)):
        for value in options.get(name, ()):
            if value not in allowed:
                return f"has an unknown {name}; use one of {', '.join(allowed)}"
    for value in options.get("port", ()):
        if not all(port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65_535 for port in value.split(",")):
            return "has an option port that is not a number from 1 to 65535"
    return None

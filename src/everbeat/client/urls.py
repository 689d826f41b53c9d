"""Validates the URL of an app: a server, or a database on which to run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from everbeat.client.errors import InvalidUrl

DEFAULT_URL = "http://127.0.0.1:8080"
_FORMS = (
    "http://host:port or https://host for a server; sqlite:///file.db or postgresql://user@host/name to run in this process"
)


def validate_urls(urls: str | Sequence[str]) -> str:
    """Return the normalized URL, or several server URLs separated by commas. Raises InvalidUrl with a hint."""
    if isinstance(urls, str) and not is_server(urls.strip()):
        return validate_url(urls)  # the URL of a database may contain commas
    if not isinstance(urls, str) and not (isinstance(urls, Sequence) and all(isinstance(url, str) for url in urls)):
        raise InvalidUrl(f"the URL is a {type(urls).__name__}, not a string or a list of strings; use {_FORMS}")
    parts = urls.split(",") if isinstance(urls, str) else urls
    normalized = list(dict.fromkeys(validate_url(url) for url in parts if url.strip()))
    if not normalized:
        raise InvalidUrl(f"there is no URL in the list; use {_FORMS}")
    if len(normalized) > 1 and (others := [url for url in normalized if not is_server(url)]):
        raise InvalidUrl(f'"{others[0]}" is a database; several URLs can only be those of servers')
    return ",".join(normalized)


def server_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """Return the URLs of servers as separate texts."""
    return tuple(url.rstrip("/") for url in (urls.split(",") if isinstance(urls, str) else urls))


def validate_url(url: str) -> str:
    """Return the normalized URL. Raises InvalidUrl with a hint."""
    text = url.strip()
    scheme, separator, _ = text.partition("://")
    if not separator:
        raise InvalidUrl(f'"{url}" is not a URL; use {_FORMS}{_suggestion(text)}')
    match scheme.lower():
        case "http" | "https":
            return _server(text)
        case "sqlite":
            return _sqlite(text)
        case "postgresql" | "postgres":
            return text
        case other if other.startswith(("postgresql+", "postgres+", "sqlite+")):
            raise InvalidUrl(f'"{other}://…" names a driver; write {other.partition("+")[0]}://…')
        case other:
            raise InvalidUrl(f'"{other}://" is not supported; use {_FORMS}')


def is_server(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _server(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidUrl(f'"{url}" is not a URL: {error}') from None
    if not parts.hostname:
        raise InvalidUrl(f'"{url}" has no host; use {_FORMS}')
    if parts.username is not None or parts.password is not None:
        raise InvalidUrl("the URL contains a user name or password; pass the API key as api_key= or in EVERBEAT_API_KEY")
    if parts.query or parts.fragment:
        raise InvalidUrl(f'"{url}" has a query or fragment; use only the address of the server')
    return url.rstrip("/")


def _sqlite(url: str) -> str:
    if not url.startswith("sqlite:///"):
        raise InvalidUrl(f'"{url}" has two slashes; write sqlite:///app.db, or sqlite:////folder/app.db for an absolute path')
    path = url.removeprefix("sqlite:///")
    if not path or path.endswith("/") or path == ":memory:":
        raise InvalidUrl(f'"{url}" has no file name; Everbeat needs a database on disk: write sqlite:///app.db')
    return url


def _suggestion(text: str) -> str:
    if text.endswith((".db", ".sqlite", ".sqlite3")):
        return f"; did you mean sqlite:///{text}?"
    host = text.partition("/")[0]
    return f"; did you mean http://{text}?" if ":" in host or host == "localhost" else ""

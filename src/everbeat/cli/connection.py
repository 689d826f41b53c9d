"""The options of commands that use a server, or a database in their own process, and the app that they connect with."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import click

from everbeat.app import Everbeat
from everbeat.cli.contexts import chosen_context
from everbeat.cli.output import OUTPUT, Printer
from everbeat.config import is_exposed
from everbeat.core.keys import is_well_formed

if TYPE_CHECKING:
    from everbeat.core.human_times import HumanTime

F = TypeVar("F", bound=Callable[..., Any])

URL = click.option("--url", help="The server, or a database to run on in this process  [EVERBEAT_URL]")
API_KEY_FILE = click.option(
    "--api-key-file", type=click.Path(dir_okay=False, path_type=Path), help="A file with the API key  [EVERBEAT_API_KEY]"
)
CONTEXT = click.option("--context", help="The context to use (see everbeat context)  [EVERBEAT_CONTEXT]")

# Shorter than the default of applications, because a person waits for the response.
_PATIENCE_SECONDS = 5.0


def read_key(file: Path) -> str:
    try:
        text = file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file} cannot be read ({error})", param_hint="--api-key-file") from None
    if not is_well_formed(text):
        raise click.BadParameter(f"{file} does not contain an API key (eb_…)", param_hint="--api-key-file")
    if is_exposed(file.expanduser()):
        click.echo(f"everbeat: other users of this machine can read {file}; run: chmod 600 {file}", err=True)
    return text


def connect(url: str | None, api_key_file: Path | None, context: str | None = None, *, patience: float = 30.0) -> Everbeat:
    """Return an app for requests of a command.

    The server is that of --url, of the context, or of EVERBEAT_URL. The key file of a context is used only for its server.
    """
    if url is None and (chosen := chosen_context(context)) is not None:
        url = chosen.url
        if api_key_file is None and chosen.key_file is not None:
            api_key_file = Path(chosen.key_file)
    key = os.environ.get("EVERBEAT_API_KEY") if api_key_file is None else read_key(api_key_file)
    return Everbeat(url, api_key=key, patience=patience)


class Session:
    """The connection of a command, and its printer."""

    def __init__(self, app: Everbeat, printer: Printer) -> None:
        self.app = app
        self.printer = printer

    def close(self) -> None:
        self.app.close()

    def get(self, path: str, **query: Any) -> Any:
        return self.app.client.requests.send("GET", path, query=query)

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        return self.app.client.requests.send(method, path, body=body, headers=headers)

    def list(self, path: str, limit: int | None, **query: Any) -> Any:
        return self.app.client.requests.pages(path, query, limit=limit)

    def time(self, text: str | None, zone: ZoneInfo | None = None, field: str = "time") -> datetime | None:
        """Return the time that a person wrote, and say how it was understood."""
        return None if text is None else self.understood(text, zone, field).at

    def understood(self, text: str, zone: ZoneInfo | None, field: str) -> HumanTime:
        from everbeat.cli.zones import default_zone
        from everbeat.core.human_times import parse_time

        found = parse_time(text, datetime.now(UTC), zone or default_zone(), field)
        self.printer.note(f"{field}: {found}")
        return found


def session_options(command: F) -> F:
    """Add the options of a command that uses a server. The command receives a Session as its first argument."""

    @functools.wraps(command)
    def run(*args: Any, context: str | None, url: str | None, api_key_file: Path | None, output: str, **options: Any) -> Any:
        with contextlib.closing(
            Session(connect(url, api_key_file, context, patience=_PATIENCE_SECONDS), Printer(output))
        ) as session:
            return command(session, *args, **options)

    for option in (API_KEY_FILE, URL, CONTEXT, OUTPUT):
        run = option(run)
    return run  # type: ignore[return-value]

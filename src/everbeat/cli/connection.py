"""The options of commands that use a server, or a database in their own process, and the app that they connect with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from everbeat.app import Everbeat
from everbeat.config import is_exposed
from everbeat.core.keys import is_well_formed

URL = click.option("--url", help="The server, or a database to run on in this process  [EVERBEAT_URL]")
API_KEY_FILE = click.option(
    "--api-key-file", type=click.Path(dir_okay=False, path_type=Path), help="A file with the API key  [EVERBEAT_API_KEY]"
)


def read_key(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file} cannot be read ({error})", param_hint="--api-key-file") from None
    if not is_well_formed(text):
        raise click.BadParameter(f"{file} does not contain an API key (eb_…)", param_hint="--api-key-file")
    if is_exposed(file):
        click.echo(f"everbeat: other users of this machine can read {file}; run: chmod 600 {file}", err=True)
    return text


def connect(url: str | None, api_key_file: Path | None) -> Everbeat:
    """Return an app for requests of a command. Without a file, the key is that of the environment."""
    key = os.environ.get("EVERBEAT_API_KEY") if api_key_file is None else read_key(api_key_file)
    return Everbeat(url, api_key=key)

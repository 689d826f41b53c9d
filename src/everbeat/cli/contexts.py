"""Contexts: named servers with their API key files, kept in a file that only its user can read."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from everbeat.core.errors import EverbeatError

CONTEXT_VARIABLE = "EVERBEAT_CONTEXT"
_DIRECTORY_VARIABLE = "EVERBEAT_CONFIG_DIR"


class UnknownContext(EverbeatError):
    """No context has this name."""

    exit_code = 3


class ServerContext(msgspec.Struct, frozen=True):
    """A server, and the file with the API key for it."""

    url: str
    key_file: str | None = None


class ContextFile(msgspec.Struct, forbid_unknown_fields=True):
    """`current`: the context that commands use if they name none."""

    current: str | None = None
    contexts: dict[str, ServerContext] = msgspec.field(default_factory=dict)

    def get(self, name: str) -> ServerContext:
        if name not in self.contexts:
            known = f"known are {', '.join(sorted(self.contexts))}" if self.contexts else "there is none yet"
            raise UnknownContext(
                f"there is no context {name} ({known}); add it with: everbeat context add {name} --url https://…"
            )
        return self.contexts[name]


def contexts_path() -> Path:
    folder = os.environ.get(_DIRECTORY_VARIABLE) or click.get_app_dir("everbeat")
    return Path(folder) / "contexts.json"


def read_contexts() -> ContextFile:
    path = contexts_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=ContextFile)
    except FileNotFoundError:
        return ContextFile()
    except (OSError, msgspec.DecodeError) as error:
        raise EverbeatError(f"the contexts in {path} cannot be read ({error}); repair or remove the file") from None


def write_contexts(contexts: ContextFile) -> None:
    """Replace the file at once, so that a command that reads it never finds a part of it."""
    path = contexts_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data: Any = msgspec.to_builtins(contexts)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts")  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def chosen_context(name: str | None) -> ServerContext | None:
    """Return the context that a command uses without --url: the named one, that of the environment, or the current one.

    EVERBEAT_URL is more specific than a context that was only chosen with `everbeat context use`.
    """
    named = name or os.environ.get(CONTEXT_VARIABLE)
    if named:
        return read_contexts().get(named)
    if os.environ.get("EVERBEAT_URL"):
        return None
    found = read_contexts()
    return None if found.current is None else found.get(found.current)

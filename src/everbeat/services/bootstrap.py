"""Decides at the start of a server whether it requires API keys, and creates the first key of a database."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Literal, NamedTuple

from everbeat.config import is_exposed
from everbeat.core.errors import Conflict, InvalidInput, SettingsError
from everbeat.core.keys import SECRET_BYTES, is_well_formed, make_key
from everbeat.services.keys import KeyService, NewKey
from everbeat.store.base import Store

Auth = Literal["auto", "keys", "off"]


class AuthSettings(NamedTuple):
    """The settings about API keys, and the address that the server listens on."""

    auth: Auth
    admin_key_file: Path | None
    host: str
    is_loopback: bool

    @property
    def needs_database_check(self) -> bool:
        """Whether the server may only listen if the database has a key."""
        return self.auth == "auto" and self.admin_key_file is None and not self.is_loopback


class AuthDecision(NamedTuple):
    """The result.

    `new_key`: a first key that was just created; its text is stored nowhere else and must be shown. `used_file`: the file
    whose key became the first one. `unused_file`: a file whose key is not valid, because the database had other keys.
    `exposed_file`: a file that other users can read.
    """

    is_required: bool
    new_key: NewKey | None = None
    used_file: Path | None = None
    unused_file: Path | None = None
    exposed_file: Path | None = None


def keys_required_error(host: str) -> SettingsError:
    return SettingsError(
        f"settings: host is {host}, but without API keys Everbeat listens on loopback only, and the database has no key; "
        "start it with --auth keys, which creates the first key, or create one with: everbeat keys create --scope admin"
    )


async def decide_auth(store: Store, auth_settings: AuthSettings) -> AuthDecision:
    """Decide, and create the first key if one is needed. Nodes that start at the same time create only one."""
    if auth_settings.auth == "off":
        return AuthDecision(False)
    has_keys = await store.key_exists()
    if auth_settings.auth == "auto" and auth_settings.admin_key_file is None:
        if not has_keys and not auth_settings.is_loopback:
            raise keys_required_error(auth_settings.host)
        return AuthDecision(has_keys)
    if auth_settings.admin_key_file is None:
        return AuthDecision(True, new_key=None if has_keys else await KeyService(store).create_first())
    return await _with_file(store, auth_settings.admin_key_file)


async def _with_file(store: Store, path: Path) -> AuthDecision:
    text = _read_key(path)
    try:
        first = await KeyService(store).create_first(text)
    except (Conflict, InvalidInput) as error:
        raise SettingsError(f"settings: admin_key_file {path}: {error}") from None
    exposed_file = path if is_exposed(path) else None
    if first is not None:
        return AuthDecision(True, used_file=path, exposed_file=exposed_file)
    unused_file = None if await KeyService(store).is_valid(text) else path
    return AuthDecision(True, unused_file=unused_file, exposed_file=exposed_file)


def _read_key(path: Path) -> str:
    """Return the key in the file. A missing file is created with a new key, readable by its owner only."""
    if not path.exists():
        _create_file(path)
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings: admin_key_file {path} cannot be read ({error})") from None
    if not is_well_formed(text):
        raise SettingsError(f"settings: admin_key_file {path} does not contain an API key; delete the file to have one created")
    return text


def _create_file(path: Path) -> None:
    """Create the file atomically. If another process has created it first, that file is kept."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(make_key(secrets.token_bytes(SECRET_BYTES)) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        raise SettingsError(f"settings: admin_key_file {path} cannot be created ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)

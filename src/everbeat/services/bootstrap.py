"""Whether a server needs keys, decided once at its start, and the first key of a database that has none."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Literal, NamedTuple

from everbeat.core.errors import Conflict, InvalidInput, SettingsError
from everbeat.core.keys import SECRET_BYTES, is_well_formed, make_key
from everbeat.services.keys import KeyService, NewKey
from everbeat.store.base import Store

Auth = Literal["auto", "keys", "off"]


class AuthSettings(NamedTuple):
    """What the settings say about keys."""

    auth: Auth
    admin_key_file: Path | None
    host: str
    is_loopback: bool

    @property
    def needs_database_check(self) -> bool:
        """Whether it depends on the database if this server may listen at all."""
        return self.auth == "auto" and self.admin_key_file is None and not self.is_loopback


class AuthDecision(NamedTuple):
    """What was decided. `shown`: a first key that was made just now and is nowhere else; it has to be shown."""

    is_required: bool
    shown: NewKey | None = None
    filed: Path | None = None
    unused: Path | None = None


def keys_required_error(host: str) -> SettingsError:
    return SettingsError(
        f"settings: host is {host}, but without API keys Everbeat listens on loopback only, and the database has no key; "
        "start it with --auth keys, which makes the first one, or make one with: everbeat keys create --scope admin"
    )


async def decide_auth(store: Store, auth_settings: AuthSettings) -> AuthDecision:
    """Decide, and make the first key if there has to be one. Nodes that start together make one key between them."""
    if auth_settings.auth == "off":
        return AuthDecision(False)
    has_keys = await store.key_exists()
    if auth_settings.auth == "auto" and auth_settings.admin_key_file is None:
        if not has_keys and not auth_settings.is_loopback:
            raise keys_required_error(auth_settings.host)
        return AuthDecision(has_keys)
    if auth_settings.admin_key_file is None:
        return AuthDecision(True, shown=None if has_keys else await KeyService(store).create_first())
    return await _with_file(store, auth_settings.admin_key_file)


async def _with_file(store: Store, path: Path) -> AuthDecision:
    text = _key_in(path)
    try:
        first = await KeyService(store).create_first(text)
    except (Conflict, InvalidInput) as error:
        raise SettingsError(f"settings: admin_key_file {path}: {error}") from None
    if first is not None:
        return AuthDecision(True, filed=path)
    return AuthDecision(True, unused=None if await KeyService(store).is_known(text) else path)


def _key_in(path: Path) -> str:
    """The key that the file holds; a file that is not there is made, with a fresh one, for its owner's eyes only."""
    if not path.exists():
        _make_file(path)
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings: admin_key_file {path} cannot be read ({error})") from None
    if not is_well_formed(text):
        raise SettingsError(f"settings: admin_key_file {path} does not hold an API key; remove the file to have one made")
    return text


def _make_file(path: Path) -> None:
    """Whole or not at all, and only once: whoever comes second reads what the first one wrote."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(make_key(secrets.token_bytes(SECRET_BYTES)) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise SettingsError(f"settings: admin_key_file {path} cannot be made ({error.strerror})") from None
    finally:
        draft.unlink(missing_ok=True)

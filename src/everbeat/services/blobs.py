"""The blob store: a directory or an S3 bucket for payloads that are too large for a row. No other module accesses it.

A payload is written once, under its own name, before the row that refers to it. It is deleted after no row refers to it. The
name contains the tenant, the month and the size, so that the size of a payload is known without a request to the store.

Failures handled here: the store is unavailable (each call has a deadline and fails with BlobsUnavailable), and the store is the
wrong one, such as a directory that is not mounted. Each store that was written to contains a marker. If the marker is missing,
no payload is reported as lost.

A directory needs the standard library only. A bucket needs obstore, which the extra `everbeat[s3]` installs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

import uuid_utils.compat

from everbeat.core.errors import BlobMissing, BlobsUnavailable, SettingsError
from everbeat.services.events import BlobCallFailed, Emit, ignore
from everbeat.store.base import Observer

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

_MARKER = "everbeat-blobs"
_MARKER_TEXT = b"Payloads of Everbeat; see blob_url in its settings.\n"
_REF = re.compile(r"([0-9a-f-]{36})/\d{4}-\d{2}/[0-9a-f-]{36}-(\d{1,9})")
_LIST_BATCH_SIZE = 1000


class Blob(NamedTuple):
    """A payload in a listing."""

    ref: str
    modified_at: datetime


def payload_size(ref: str) -> int:
    """Return the size of the payload, which the reference contains."""
    match = _REF.fullmatch(ref)
    return int(match[2]) if match else 0


def payload_tenant(ref: str) -> UUID:
    """Return the tenant that the payload belongs to."""
    return UUID(ref.partition("/")[0])


class BlobBackend(Protocol):
    """A directory or a bucket, as BlobStore uses it. Errors are OSError; a missing name is FileNotFoundError."""

    def check(self) -> None:
        """Raise SettingsError if the backend cannot be used as configured."""

    async def put(self, name: str, data: bytes) -> None:
        """Write durably and atomically. Overwrites an existing blob."""

    async def get(self, name: str) -> bytes: ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete blobs. Names that do not exist are ignored."""

    def batches(self) -> AsyncIterator[list[Blob]]:
        """Return all names in batches of limited size, in no particular order."""


class BlobStore:
    """The blob store. `url` is file:///directory or s3://bucket/prefix; None means that there is no blob store."""

    def __init__(
        self,
        url: str | None,
        *,
        endpoint: str | None = None,
        deadline_seconds: float = 30.0,
        emit: Emit = ignore,
        observer: Observer | None = None,
    ) -> None:
        self._url = url
        self._endpoint = endpoint
        self._deadline_seconds = deadline_seconds
        self._emit = emit
        self._observer = observer
        self._opened_backend: BlobBackend | None = None
        self._has_marker = False

    @property
    def is_configured(self) -> bool:
        """Whether this server has a blob store."""
        return self._url is not None

    def check(self) -> None:
        """Raise SettingsError if the settings are wrong. A bucket that cannot be reached now is not an error."""
        if self._url is not None:
            self._backend.check()

    async def put(self, tenant_id: UUID, payload: bytes) -> str:
        """Write a payload durably and return its reference."""
        id_ = uuid_utils.compat.uuid7()
        at = datetime.fromtimestamp((id_.int >> 80) / 1000, UTC)
        ref = f"{tenant_id}/{at:%Y-%m}/{id_}-{len(payload)}"
        async with self._call("blob_put"):
            await self._write_marker()
            await self._backend.put(ref, payload)
        return ref

    async def get(self, ref: str) -> bytes:
        """Return a payload. Raises BlobMissing if it does not exist."""
        async with self._call("blob_get"):
            try:
                return await self._backend.get(ref)
            except FileNotFoundError:
                await self._backend.get(_MARKER)  # also missing: the whole store is missing, not this payload
                raise BlobMissing(f"the payload {ref} is not in the blob store") from None

    async def delete(self, refs: Sequence[str]) -> None:
        """Delete payloads. Those that do not exist are ignored."""
        async with self._call("blob_delete"):
            await self._backend.delete(refs)

    async def batches(self) -> AsyncIterator[list[Blob]]:
        """Return all payloads in batches of limited size, in no particular order."""
        async with self._call("blob_list"):
            batches = self._backend.batches()
        while True:
            async with self._call("blob_list"):
                found = await anext(batches, None)
            if found is None:
                return
            yield [blob for blob in found if _REF.fullmatch(blob.ref)]

    @contextlib.asynccontextmanager
    async def _call(self, verb: str) -> AsyncIterator[None]:
        """Apply the deadline to one call and turn its errors into BlobsUnavailable."""
        started, has_failed = time.perf_counter(), True
        try:
            async with asyncio.timeout(self._deadline_seconds):
                yield
            has_failed = False
        except OSError as error:  # TimeoutError is an OSError
            text = str(error) or f"no response within {self._deadline_seconds:.0f} seconds"
            self._emit(BlobCallFailed(verb, text[:500]))
            raise BlobsUnavailable(f"the blob store failed ({verb}): {text[:500]}") from error
        finally:
            if self._observer is not None:
                self._observer(verb, time.perf_counter() - started, has_failed)

    async def _write_marker(self) -> None:
        """Write the marker once per process, in case it was deleted."""
        if isinstance(self._backend, _Directory) and not self._backend.path.is_dir():
            self._has_marker = False
        if not self._has_marker:
            await self._backend.put(_MARKER, _MARKER_TEXT)
            self._has_marker = True

    @property
    def _backend(self) -> BlobBackend:
        if self._opened_backend is None:
            url = self._url or ""
            if url.startswith("file://"):
                self._opened_backend = _Directory(Path(unquote(urlsplit(url).path)))
            else:
                self._opened_backend = _Bucket(url, self._endpoint, self._deadline_seconds)
        return self._opened_backend


# A directory


class _Directory:
    """Files in a directory, readable by their owner only. File operations run in threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Not the default executor: a directory on a network file system can block its threads for a long time.
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="everbeat-blobs")

    def check(self) -> None:
        existing = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise SettingsError(f"the directory {self.path} for large payloads is not writable; set blob_url to another one")

    async def put(self, name: str, data: bytes) -> None:
        await self._run(_write, self.path, name, data)

    async def get(self, name: str) -> bytes:
        return await self._run((self.path / name).read_bytes)

    async def delete(self, names: Sequence[str]) -> None:
        await self._run(_delete, self.path, names)

    async def batches(self) -> AsyncIterator[list[Blob]]:
        files = _files(self.path)
        while batch := await self._run(lambda: list(islice(files, _LIST_BATCH_SIZE))):
            yield batch

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(function, *args))


def _write(root: Path, name: str, data: bytes) -> None:
    """Write a temporary file and rename it, so that no reader sees a part; then sync the file and the directories above it."""
    path = root / name
    root.parent.mkdir(parents=True, exist_ok=True)
    for directory in (root, *reversed(path.relative_to(root).parents[:-1])):
        (root / directory).mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f"{path.name}#{uuid4()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for directory in path.parents:
        _sync(directory)
        if directory == root:
            break


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _delete(root: Path, names: Sequence[str]) -> None:
    for name in names:
        (root / name).unlink(missing_ok=True)


def _files(root: Path) -> Iterator[Blob]:
    """Return all files below the directory. A file or directory that is deleted meanwhile is skipped."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for parent, _, names in os.walk(root, onerror=fail):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                info = path.stat()
                if stat.S_ISREG(info.st_mode):
                    yield Blob(path.relative_to(root).as_posix(), datetime.fromtimestamp(info.st_mtime, UTC))


# A bucket


class _Bucket:
    """An S3-compatible bucket, through obstore."""

    def __init__(self, url: str, endpoint: str | None, deadline_seconds: float) -> None:
        self._store = open_bucket(url, endpoint, deadline_seconds)

    def check(self) -> None:
        """The settings were checked when the bucket was opened."""

    async def put(self, name: str, data: bytes) -> None:
        with _bucket_errors():
            await self._store.put_async(name, data, use_multipart=False)

    async def get(self, name: str) -> bytes:
        with _bucket_errors():
            return bytes(await (await self._store.get_async(name)).bytes_async())

    async def delete(self, names: Sequence[str]) -> None:
        with _bucket_errors():
            await self._store.delete_async(names)

    async def batches(self) -> AsyncIterator[list[Blob]]:
        with _bucket_errors():
            async for batch in self._store.list(chunk_size=_LIST_BATCH_SIZE):
                yield [Blob(found["path"], found["last_modified"]) for found in batch]


@contextlib.contextmanager
def _bucket_errors() -> Iterator[None]:
    """Turn the errors of obstore into OSError, without its debug output. A missing name is FileNotFoundError already."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(str(error).partition("\n\nDebug source")[0]) from error


def open_bucket(url: str, endpoint: str | None, deadline_seconds: float) -> S3Store:
    """Open a bucket. Credentials and region come from the AWS_* variables or the AWS configuration of the machine."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError:
        raise SettingsError(
            "settings: a URL that begins with s3:// needs the package obstore; run: pip install 'everbeat[s3]'"
        ) from None
    try:
        return S3Store.from_url(
            url,
            client_options={
                "allow_http": (endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=3),
                "timeout": timedelta(seconds=deadline_seconds),
            },
            retry_config={
                "max_retries": 2,
                "retry_timeout": timedelta(seconds=deadline_seconds),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(seconds=1),
                    "base": 2,
                },
            },
            **({} if endpoint is None else {"endpoint": endpoint}),  # type: ignore[arg-type]
        )
    except (BaseError, ValueError) as error:
        text = str(error).partition("\n")[0]
        raise SettingsError(f"settings: the URL {url} or the AWS_* variables are wrong: {text}") from None

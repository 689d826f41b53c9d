"""The blob store: a folder or a bucket for payloads that are too large for a row; nothing else knows how it is spoken to.

A payload is written once, under a name of its own, before the row that refers to it, and removed after no row does. Its name
says whose it is, its month and its size, so that what a claim would have to fetch is known without asking.

Defends against: a store that is away (every call has a deadline, and says so), a store that is the wrong one, such as a folder
that is not mounted: a mark lies in every store that was ever written to, and where it is missing nothing counts as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import UUID

import uuid_utils.compat
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from everbeat.core.errors import BlobMissing, BlobsUnavailable, SettingsError
from everbeat.services.events import BlobCallFailed, Emit, ignore
from everbeat.store.base import Observer

_MARKER = "everbeat-blobs"
_REF = re.compile(r"([0-9a-f-]{36})/\d{4}-\d{2}/[0-9a-f-]{36}-(\d{1,9})")
_LISTED = 1000


class Blob(NamedTuple):
    """A payload as a listing shows it."""

    ref: str
    modified_at: datetime


def bytes_at(ref: str) -> int:
    """How large the payload is."""
    match = _REF.fullmatch(ref)
    return int(match[2]) if match else 0


def tenant_at(ref: str) -> UUID:
    """Whose payload it is."""
    return UUID(ref.partition("/")[0])


class BlobStore:
    """`url`: file:///folder or s3://bucket/prefix; None: there is no blob store."""

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
        self._folder = _folder_of(url)
        self._store: LocalStore | S3Store | None = None
        self._is_marked = False

    @property
    def is_there(self) -> bool:
        """Whether this server has a blob store."""
        return self._url is not None

    def check(self) -> None:
        """Fails with a message that says what to do; a bucket that is away now may be there later."""
        if self._folder is None:
            if self._url is not None:
                self._opened()
            return
        above = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise SettingsError(f"the folder {self._folder} for large payloads cannot be written; set blob_url")

    async def put(self, tenant_id: UUID, payload: bytes) -> str:
        """Keep a payload, durably; its reference."""
        id_ = uuid_utils.compat.uuid7()
        at = datetime.fromtimestamp((id_.int >> 80) / 1000, UTC)
        ref = f"{tenant_id}/{at:%Y-%m}/{id_}-{len(payload)}"
        async with self._call("blob_put"):
            store = await self._ready()
            await store.put_async(ref, payload, use_multipart=False)
            if self._folder is not None:
                await asyncio.to_thread(_seal, self._folder, ref)
        return ref

    async def get(self, ref: str) -> bytes:
        """The payload; raises BlobMissing if it is gone."""
        async with self._call("blob_get"):
            store = self._opened()
            try:
                result = await store.get_async(ref)
                return bytes(await result.bytes_async())
            except FileNotFoundError:
                await store.head_async(_MARKER)  # not there either: then it is the whole store that is missing
                raise BlobMissing(f"the payload {ref} is not in the blob store") from None

    async def delete(self, refs: Sequence[str]) -> None:
        """Remove payloads; those that are gone already do not matter."""
        async with self._call("blob_delete"):
            store = self._opened()
            if isinstance(store, S3Store):
                await store.delete_async(refs)
                return
            for ref in refs:
                with contextlib.suppress(FileNotFoundError):
                    await store.delete_async(ref)

    async def batches(self) -> AsyncIterator[list[Blob]]:
        """All payloads that are there, in no order, a bounded piece at a time."""
        if self._folder is not None and not self._folder.is_dir():
            return
        async with self._call("blob_list"):
            stream = self._opened().list(chunk_size=_LISTED)
        while True:
            async with self._call("blob_list"):
                found = await anext(stream, None)
            if found is None:
                return
            yield [Blob(one["path"], one["last_modified"]) for one in found if _REF.fullmatch(one["path"])]

    @contextlib.asynccontextmanager
    async def _call(self, verb: str) -> AsyncIterator[None]:
        """One call under its deadline, its errors in our words."""
        started, has_failed = time.perf_counter(), True
        try:
            async with asyncio.timeout(self._deadline_seconds):
                yield
            has_failed = False
        except (BaseError, OSError) as error:  # a timeout is one, too
            text = str(error).partition("\n\nDebug source")[0] or f"no answer within {self._deadline_seconds:.0f} seconds"
            self._emit(BlobCallFailed(verb, text[:500]))
            raise BlobsUnavailable(f"the blob store did not do its part ({verb}): {text[:500]}") from error
        finally:
            if self._observer is not None:
                self._observer(verb, time.perf_counter() - started, has_failed)

    async def _ready(self) -> LocalStore | S3Store:
        """The store, with its mark in it: written anew by each process, in case that somebody tidied up."""
        if self._folder is not None and not self._folder.is_dir():
            await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            self._is_marked = False
        store = self._opened()
        if not self._is_marked:
            await store.put_async(_MARKER, b"Payloads of Everbeat; see blob_url in its settings.\n", use_multipart=False)
            self._is_marked = True
        return store

    def _opened(self) -> LocalStore | S3Store:
        if self._store is None:
            self._store = LocalStore(self._folder) if self._folder is not None else self._bucket()
        return self._store

    def _bucket(self) -> S3Store:
        """Credentials and region come from the usual AWS_* variables, or from where the machine gets them."""
        endpoint = {} if self._endpoint is None else {"endpoint": self._endpoint}
        try:
            return S3Store.from_url(
                self._url or "",
                client_options={
                    "allow_http": (self._endpoint or "").startswith("http://"),
                    "connect_timeout": timedelta(seconds=3),
                    "timeout": timedelta(seconds=self._deadline_seconds),
                },
                retry_config={
                    "max_retries": 2,
                    "retry_timeout": timedelta(seconds=self._deadline_seconds),
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=50),
                        "max_backoff": timedelta(seconds=1),
                        "base": 2,
                    },
                },
                **endpoint,  # type: ignore[arg-type]
            )
        except (BaseError, ValueError) as error:
            text = str(error).partition("\n")[0]
            raise SettingsError(f"settings: blob_url or the AWS_* variables beside it are not right: {text}") from None


def _folder_of(url: str | None) -> Path | None:
    return Path(unquote(urlsplit(url).path)) if url is not None and url.startswith("file://") else None


def _seal(folder: Path, ref: str) -> None:
    """For its owner's eyes only, and safe from a power cut: the row that refers to it will be."""
    path = folder / ref
    path.chmod(0o600)
    for one in (path, *path.parents):
        handle = os.open(one, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if one == folder:
            break

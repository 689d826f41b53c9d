"""The files of an archive: Parquet in a directory or an S3 bucket. The only module that uses pyarrow.

A file becomes visible when it is complete. Its rows are written as row groups of limited size, so that the memory in use does
not depend on the size of a month. All functions block, and are called in threads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec

from everbeat.core.archives import (
    ARCHIVE_COLUMNS,
    ARCHIVE_SCHEMA_VERSION,
    DATASETS,
    ArchiveManifest,
    ArchiveSegment,
    ColumnKind,
)
from everbeat.core.errors import ArchiveUnavailable, SettingsError
from everbeat.core.retention import MONTH_TABLES
from everbeat.core.target_secrets import shown_headers
from everbeat.services.blobs import open_bucket

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import LocalStore, S3Store

_ROW_GROUP_ROWS = 100_000
_ROW_GROUP_BYTES = 16 * 1024 * 1024
_UPLOAD_PART_BYTES = 8 * 1024 * 1024
_UPLOADS_AT_A_TIME = 2
_READ_ROWS = 100_000


class FileSummary(NamedTuple):
    """What is in a file, read back from where it was written."""

    rows: int
    bytes: int
    row_groups: int
    first_at: datetime | None
    last_at: datetime | None


class ArchiveFiles:
    """The directory or bucket of an archive. `url` is file:///directory or s3://bucket/prefix."""

    def __init__(self, url: str, *, endpoint: str | None = None, deadline_seconds: float = 60.0) -> None:
        _require_pyarrow()
        self.url = url
        self._root = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None
        self._store = self._open(endpoint, deadline_seconds)

    def _open(self, endpoint: str | None, deadline_seconds: float) -> LocalStore | S3Store:
        if self._root is None:
            return open_bucket(self.url, endpoint, deadline_seconds)
        from obstore.store import LocalStore

        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"settings: archive_url: {self._root} is not a directory that can be written: {error}"
            ) from None
        if not os.access(self._root, os.W_OK | os.X_OK):
            raise SettingsError(f"settings: archive_url: the directory {self._root} is not writable")
        return LocalStore(self._root)

    def create(self, segment: ArchiveSegment) -> ArchiveWriter:
        """Begin the file of a segment. A file of an earlier try stays as it is until this one is complete."""
        import obstore

        with _archive_errors():
            sink = obstore.open_writer(
                self._store, segment.file, buffer_size=_UPLOAD_PART_BYTES, max_concurrency=_UPLOADS_AT_A_TIME
            )
            return ArchiveWriter(sink, segment.table)

    def read_back(self, segment: ArchiveSegment) -> FileSummary:
        """Read the file of a segment: its metadata, and the times of all rows."""
        import obstore
        import pyarrow.parquet as pq

        with _archive_errors():
            source = obstore.open_reader(self._store, segment.file)
            with pq.ParquetFile(_file_object(_Source(source), "r")) as file:
                rows, first_at, last_at = 0, None, None
                column = MONTH_TABLES[segment.table]
                for batch in file.iter_batches(batch_size=_READ_ROWS, columns=[column]):
                    rows += batch.num_rows
                    first_at, last_at = _widened(batch.column(0), first_at, last_at)
                if rows != file.metadata.num_rows:
                    raise OSError(f"{segment.file} has {rows} rows, and {file.metadata.num_rows} by its metadata")
                return FileSummary(rows, source.size, file.metadata.num_row_groups, first_at, last_at)

    def write_manifest(self, segment: ArchiveSegment, manifest: ArchiveManifest) -> None:
        import obstore

        text = json.dumps(msgspec.to_builtins(manifest), indent=2).encode()
        with _archive_errors():
            if self._root is not None:
                _sync(self._root / segment.file)
            obstore.put(self._store, segment.manifest, text)
            if self._root is not None:
                _sync(self._root / segment.manifest)


class ArchiveWriter:
    """Writes the rows of one file. A page is kept in memory until a row group is large enough."""

    def __init__(self, sink: Any, table: str) -> None:
        import pyarrow.parquet as pq

        self._sink = sink
        self._table = table
        self._schema = _schema_of(table)
        self._pages: list[pa.Table] = []
        self.rows = 0
        self._file = _Sink(sink)
        file = _file_object(self._file, "w")
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd", write_statistics=True)

    def write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        with _archive_errors():
            self._pages.append(_table_of(self._table, self._schema, rows))
            self.rows += len(rows)
            size = sum(page.nbytes for page in self._pages)
            if size >= _ROW_GROUP_BYTES or sum(page.num_rows for page in self._pages) >= _ROW_GROUP_ROWS:
                self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._pages:
            table = pa.concat_tables(self._pages)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._pages = []

    def close(self) -> None:
        """Complete the file. Without this it does not become visible."""
        with _archive_errors():
            self._flush()
            self._writer.close()
            self._sink.close()

    def abandon(self) -> None:
        """Discard what was written."""
        self._pages = []
        self._file.is_discarding = True
        # Whatever fails here, the file is not complete and does not become visible.
        with suppress(Exception):
            self._writer.close()
        with suppress(Exception):
            self._sink.__exit__(OSError, OSError("abandoned"), None)


# Rows as Arrow tables


def _schema_of(table: str) -> pa.Schema:
    import pyarrow as pa

    types = {
        ColumnKind.ID: pa.string(),
        ColumnKind.TIME: pa.timestamp("us", tz="UTC"),
        ColumnKind.TEXT: pa.string(),
        ColumnKind.INTEGER: pa.int64(),
        ColumnKind.FLOAT: pa.float64(),
    }
    fields = [pa.field(name, types[kind]) for name, kind in ARCHIVE_COLUMNS[table].items()]
    about = {"everbeat.dataset": DATASETS[table], "everbeat.schema_version": str(ARCHIVE_SCHEMA_VERSION)}
    return pa.schema(fields, metadata=about)


def _table_of(table: str, schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    import pyarrow as pa

    columns = []
    for (name, kind), field, values in zip(ARCHIVE_COLUMNS[table].items(), schema, zip(*rows, strict=True), strict=True):
        if kind is ColumnKind.ID:
            values = tuple(str(value) if isinstance(value, UUID) else value for value in values)
        elif name == "target":
            values = tuple(_shown_target(value) for value in values)
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _shown_target(text: str) -> str:
    """The target without the values of secret headers."""
    if '"headers"' not in text:
        return text
    target = json.loads(text)
    return json.dumps({**target, "headers": shown_headers(target["headers"])})


def _widened(column: Any, first_at: Any, last_at: Any) -> tuple[Any, Any]:
    import pyarrow.compute as pc

    bounds = pc.min_max(column).as_py()
    low, high = bounds["min"], bounds["max"]
    if low is None:
        return first_at, last_at
    return (low if first_at is None else min(first_at, low), high if last_at is None else max(last_at, high))


# Files as pyarrow uses them


class _Sink:
    """A file that pyarrow writes to. It does not close the upload: that is done when the file is known to be complete."""

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.is_discarding = False

    def write(self, data: Any) -> int:
        if not self.is_discarding:
            self._sink.write(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class _Source:
    """A file that pyarrow reads from."""

    closed = False

    def __init__(self, source: Any) -> None:
        self._source = source

    def read(self, size: int = -1) -> bytes:
        return bytes(self._source.read(size if size >= 0 else None))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._source.seek(offset, whence))

    def tell(self) -> int:
        return int(self._source.tell())

    def size(self) -> int:
        return int(self._source.size)

    def close(self) -> None: ...

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True


def _file_object(source: _Sink | _Source, mode: str) -> Any:
    import pyarrow as pa

    return pa.PythonFile(source, mode=mode)


def _sync(path: Path) -> None:
    """Make a file and its directory durable, and the file readable by its owner only."""
    path.chmod(0o600)
    for one in (path, path.parent, path.parent.parent):
        handle = os.open(one, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _archive_errors() -> Iterator[None]:
    """Turn the errors of obstore, pyarrow and the operating system into ArchiveUnavailable."""
    import pyarrow as pa
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, pa.ArrowException) as error:
        text = str(error).partition("\n\nDebug source")[0] or type(error).__name__
        raise ArchiveUnavailable(f"the archive cannot be written or read: {text[:500]}") from error


def _require_pyarrow() -> None:
    try:
        import obstore  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        raise SettingsError(
            "settings: archive_url needs the packages obstore and pyarrow; run: pip install 'everbeat[archive]'"
        ) from None

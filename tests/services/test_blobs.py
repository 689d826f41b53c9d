"""The blob store in a folder and on a real S3-speaking server: keep, fetch, remove, list, and say when it is away."""

from __future__ import annotations

import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from everbeat.core.errors import BlobMissing, BlobsUnavailable, SettingsError
from everbeat.services.blobs import BlobStore, bytes_at, tenant_at
from everbeat.services.events import BlobCallFailed, Event
from tests.support.s3 import S3Server

TENANT = UUID(int=7)
PAYLOAD = b'"' + b"x" * 100_000 + b'"'
GONE = f"{TENANT}/2026-01/{UUID(int=1)}-5"


@pytest.fixture(params=["folder", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return BlobStore((tmp_path / "of large payloads").as_uri())
    server: S3Server = request.getfixturevalue("s3_server")
    return BlobStore(request.getfixturevalue("s3_url"), endpoint=server.endpoint)


async def listed(blobs: BlobStore) -> list[str]:
    return sorted([blob.ref async for piece in blobs.batches() for blob in piece])


async def test_a_payload_is_kept_under_a_name_that_says_whose_and_how_large_it_is(blobs: BlobStore) -> None:
    ref = await blobs.put(TENANT, PAYLOAD)
    assert re.fullmatch(rf"{TENANT}/{datetime.now(UTC):%Y-%m}/[0-9a-f-]{{36}}-{len(PAYLOAD)}", ref)
    assert await blobs.get(ref) == PAYLOAD
    assert (tenant_at(ref), bytes_at(ref)) == (TENANT, len(PAYLOAD))


async def test_all_that_was_kept_is_listed_but_not_the_mark(blobs: BlobStore) -> None:
    assert await listed(blobs) == []
    refs = [await blobs.put(TENANT, PAYLOAD) for _ in range(3)]
    assert await listed(blobs) == sorted(refs)
    (piece,) = [piece async for piece in blobs.batches()]
    assert all(abs(blob.modified_at - datetime.now(UTC)) < timedelta(minutes=1) for blob in piece)


async def test_what_is_removed_is_missing_and_may_be_removed_again(blobs: BlobStore) -> None:
    ref, other = [await blobs.put(TENANT, PAYLOAD) for _ in range(2)]
    await blobs.delete([ref])
    with pytest.raises(BlobMissing):
        await blobs.get(ref)
    await blobs.delete([ref, other])
    assert await listed(blobs) == []


async def test_where_there_is_no_mark_nothing_counts_as_lost(blobs: BlobStore) -> None:
    """An empty folder in place of one that is not mounted, a prefix that was mistyped."""
    with pytest.raises(BlobsUnavailable):
        await blobs.get(GONE)


async def test_a_bucket_that_does_not_exist_is_away(s3_server: S3Server, s3_url: str) -> None:
    blobs = BlobStore("s3://no-such-bucket-of-ours", endpoint=s3_server.endpoint)
    for asked in (blobs.put(TENANT, PAYLOAD), blobs.get(GONE)):
        with pytest.raises(BlobsUnavailable):
            await asked


async def test_a_server_that_is_away_is_told_of(s3_url: str) -> None:
    events: list[Event] = []
    blobs = BlobStore(s3_url, endpoint="http://127.0.0.1:9", emit=events.append)
    with pytest.raises(BlobsUnavailable):
        await blobs.put(TENANT, PAYLOAD)
    (told,) = events
    assert isinstance(told, BlobCallFailed)
    assert told.verb == "blob_put"
    assert "Debug" not in told.error


async def test_a_call_has_a_deadline(s3_url: str) -> None:
    blobs = BlobStore(s3_url, endpoint="http://127.0.0.1:9", deadline_seconds=0.0)
    with pytest.raises(BlobsUnavailable, match="no answer within"):
        await blobs.get(GONE)


async def test_a_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    ref = await BlobStore(folder.as_uri()).put(TENANT, PAYLOAD)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / ref).stat().st_mode) == 0o600


def test_no_folder_is_made_before_it_is_needed(tmp_path: Path) -> None:
    BlobStore((tmp_path / "blobs").as_uri()).check()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_a_folder_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="blob_url"):
        BlobStore((tmp_path / "file" / "blobs").as_uri()).check()

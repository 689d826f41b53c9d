"""The blob store in a directory and on an S3-compatible server: put, get, delete, list, and failures."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from everbeat.core.errors import BlobMissing, BlobsUnavailable, SettingsError
from everbeat.services.blobs import BlobStore, payload_size, payload_tenant
from everbeat.services.events import BlobCallFailed, Event
from tests.support.seaweedfs import S3Server

TENANT = UUID(int=7)
PAYLOAD = b'"' + b"x" * 100_000 + b'"'
MISSING = f"{TENANT}/2026-01/{UUID(int=1)}-5"


@pytest.fixture(params=["directory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "directory":
        return BlobStore((tmp_path / "of large payloads").as_uri())
    server: S3Server = request.getfixturevalue("s3_server")
    return BlobStore(request.getfixturevalue("s3_url"), endpoint=server.endpoint)


@pytest.fixture
def without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)


async def list_refs(blobs: BlobStore) -> list[str]:
    return sorted([blob.ref async for batch in blobs.batches() for blob in batch])


async def test_the_name_of_a_payload_contains_its_tenant_month_and_size(blobs: BlobStore) -> None:
    ref = await blobs.put(TENANT, PAYLOAD)
    assert re.fullmatch(rf"{TENANT}/{datetime.now(UTC):%Y-%m}/[0-9a-f-]{{36}}-{len(PAYLOAD)}", ref)
    assert await blobs.get(ref) == PAYLOAD
    assert (payload_tenant(ref), payload_size(ref)) == (TENANT, len(PAYLOAD))


async def test_all_payloads_are_listed_but_not_the_marker(blobs: BlobStore) -> None:
    assert await list_refs(blobs) == []
    refs = [await blobs.put(TENANT, PAYLOAD) for _ in range(3)]
    assert await list_refs(blobs) == sorted(refs)
    (batch,) = [batch async for batch in blobs.batches()]
    assert all(abs(blob.modified_at - datetime.now(UTC)) < timedelta(minutes=1) for blob in batch)


async def test_a_deleted_payload_is_missing_and_can_be_deleted_again(blobs: BlobStore) -> None:
    ref, other = [await blobs.put(TENANT, PAYLOAD) for _ in range(2)]
    await blobs.delete([ref])
    with pytest.raises(BlobMissing):
        await blobs.get(ref)
    await blobs.delete([ref, other])
    assert await list_refs(blobs) == []


async def test_without_the_marker_no_payload_is_reported_as_missing(blobs: BlobStore) -> None:
    """For example an empty directory in place of a mount, or a mistyped prefix."""
    with pytest.raises(BlobsUnavailable):
        await blobs.get(MISSING)


async def test_a_bucket_that_does_not_exist_is_unavailable(s3_server: S3Server, s3_url: str) -> None:
    blobs = BlobStore("s3://no-such-bucket-of-ours", endpoint=s3_server.endpoint)
    for call in (blobs.put(TENANT, PAYLOAD), blobs.get(MISSING)):
        with pytest.raises(BlobsUnavailable):
            await call


async def test_a_failed_call_emits_an_event(s3_url: str) -> None:
    events: list[Event] = []
    blobs = BlobStore(s3_url, endpoint="http://127.0.0.1:9", emit=events.append)
    with pytest.raises(BlobsUnavailable):
        await blobs.put(TENANT, PAYLOAD)
    (event,) = events
    assert isinstance(event, BlobCallFailed)
    assert event.verb == "blob_put"
    assert "Debug" not in event.error


async def test_a_call_has_a_deadline(s3_url: str) -> None:
    blobs = BlobStore(s3_url, endpoint="http://127.0.0.1:9", deadline_seconds=0.0)
    with pytest.raises(BlobsUnavailable, match="no response within"):
        await blobs.get(MISSING)


async def test_without_obstore_a_bucket_is_refused_with_the_extra_to_install(without_obstore: None) -> None:
    with pytest.raises(SettingsError, match=re.escape("pip install 'everbeat[s3]'")):
        BlobStore("s3://bucket").check()


async def test_a_directory_does_not_need_obstore(without_obstore: None, tmp_path: Path) -> None:
    blobs = BlobStore((tmp_path / "blobs").as_uri())
    blobs.check()
    ref = await blobs.put(TENANT, PAYLOAD)
    assert await blobs.get(ref) == PAYLOAD
    assert await list_refs(blobs) == [ref]
    await blobs.delete([ref])
    assert await list_refs(blobs) == []


async def test_a_directory_is_accessible_to_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    before = os.umask(0)
    try:
        ref = await BlobStore(folder.as_uri()).put(TENANT, PAYLOAD)
    finally:
        os.umask(before)
    made = [folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}
    assert folder / ref in made


async def test_a_directory_that_was_deleted_is_created_again_with_the_marker(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    blobs = BlobStore(folder.as_uri())
    await blobs.put(TENANT, PAYLOAD)
    folder.rename(tmp_path / "moved")
    ref = await blobs.put(TENANT, PAYLOAD)
    assert await blobs.get(ref) == PAYLOAD
    with pytest.raises(BlobMissing):
        await blobs.get(MISSING)


async def test_a_failed_write_to_a_directory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "blobs"
    blobs = BlobStore(folder.as_uri())
    await blobs.put(TENANT, PAYLOAD)
    before = sorted(folder.rglob("*"))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(BlobsUnavailable, match="No space left"):
        await blobs.put(TENANT, PAYLOAD)
    assert sorted(folder.rglob("*")) == before


async def test_payloads_can_be_written_to_a_directory_concurrently(tmp_path: Path) -> None:
    blobs = BlobStore((tmp_path / "blobs").as_uri())
    refs = await asyncio.gather(*(blobs.put(TENANT, b"%d" % number) for number in range(50)))
    assert [await blobs.get(ref) for ref in refs] == [b"%d" % number for number in range(50)]
    assert await list_refs(blobs) == sorted(refs)


async def test_a_list_of_a_directory_skips_temporary_files(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    blobs = BlobStore(folder.as_uri())
    ref = await blobs.put(TENANT, PAYLOAD)
    (folder / f"{ref}#{UUID(int=2)}").write_bytes(b"a write that was interrupted")
    assert await list_refs(blobs) == [ref]


def test_a_directory_is_not_created_before_the_first_write(tmp_path: Path) -> None:
    BlobStore((tmp_path / "blobs").as_uri()).check()
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_a_directory_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="blob_url"):
        BlobStore((tmp_path / "file" / "blobs").as_uri()).check()

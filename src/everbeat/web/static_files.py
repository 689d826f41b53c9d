"""Static files of the dashboard: loaded once, served under URLs that contain their hash, compressed in advance."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.problems import NOT_FOUND, HttpProblem

PREFIX = "/static/"

_TYPES = {
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
    "png": b"image/png",
}
_COMPRESSED = frozenset({"css", "js", "svg"})


class StaticFile(NamedTuple):
    """One file. `url` contains its hash, so browsers may keep it forever."""

    name: str
    url: str
    media_type: bytes
    body: bytes
    compressed: bytes | None


@cache
def static_files() -> dict[str, StaticFile]:
    """All static files by name, such as `everbeat.css` or `vendor/htmx-2.0.11.min.js`."""
    return {one.name: one for one in _load(files("everbeat.web").joinpath("static"), "")}


@cache
def _by_url() -> dict[str, StaticFile]:
    return {one.url: one for one in static_files().values()}


def static_urls() -> frozenset[str]:
    return frozenset(_by_url())


def static_url(name: str) -> str:
    return static_files()[name].url


async def serve_static(request: ApiRequest) -> Response:
    file = _by_url().get(request.path)
    if file is None:
        raise HttpProblem(NOT_FOUND, "There is no such file.")
    headers = [(b"content-type", file.media_type), (b"cache-control", b"public, max-age=31536000, immutable")]
    if file.compressed is None:
        return Response(200, file.body, headers)
    headers.append((b"vary", b"accept-encoding"))
    if "gzip" in (request.header(b"accept-encoding") or ""):
        return Response(200, file.compressed, [*headers, (b"content-encoding", b"gzip")])
    return Response(200, file.body, headers)


def _load(folder: Traversable, prefix: str) -> list[StaticFile]:
    found: list[StaticFile] = []
    for item in sorted(folder.iterdir(), key=lambda one: one.name):
        ending = item.name.rpartition(".")[2]
        if item.is_dir():
            found += _load(item, f"{prefix}{item.name}/")
        elif ending in _TYPES:
            body = item.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:12]
            compressed = gzip.compress(body, 9, mtime=0) if ending in _COMPRESSED else None
            found.append(StaticFile(prefix + item.name, f"{PREFIX}{digest}/{item.name}", _TYPES[ending], body, compressed))
    return found

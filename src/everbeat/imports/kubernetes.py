"""Reads Kubernetes manifests: JSON, or YAML with several documents, and lists of objects. It finds the CronJobs in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from everbeat.core.errors import EverbeatError

CRON_JOB = "CronJob"


class UnreadableManifest(EverbeatError):
    """A file that is neither JSON nor YAML."""


class YamlMissing(EverbeatError):
    """The package that reads YAML is not installed."""

    def __init__(self) -> None:
        super().__init__('YAML needs a package that is not installed: pip install "everbeat[cli]"; or use kubectl get -o json')


class Manifest(NamedTuple):
    """An object of Kubernetes. `source`: the file and the number of the document."""

    source: str
    content: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.content.get("kind", "object without a kind"))


def read_manifests(text: str, source: str) -> list[Manifest]:
    """Return the objects of a file. Lists are replaced with their items."""
    found: list[Manifest] = []
    for number, document in enumerate(_documents(text, source), 1):
        if document is not None:
            found += _objects(document, f"{source}, document {number}")
    return found


def _documents(text: str, source: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError as error:
        json_error = str(error) if text.lstrip()[:1] in ("{", "[") else None
    try:
        import yaml
    except ImportError:
        if json_error is not None:
            raise UnreadableManifest(f"{source} is not valid JSON: {json_error}") from None
        raise YamlMissing from None
    try:
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise UnreadableManifest(f"{source} is not valid YAML: {error}") from None


def _objects(document: Any, source: str) -> Iterator[Manifest]:
    if isinstance(document, list):
        items: Any = document
    elif isinstance(document, dict):
        items = document.get("items")
        if not str(document.get("kind", "")).endswith("List") or not isinstance(items, list):
            yield Manifest(source, document)
            return
        if document["kind"] == f"{CRON_JOB}List":  # its items need no kind
            items = [{"kind": CRON_JOB, **item} if isinstance(item, dict) else item for item in items]
    else:
        raise UnreadableManifest(f"{source} is not an object of Kubernetes")
    for number, item in enumerate(items, 1):
        yield from _objects(item, f"{source}, item {number}")

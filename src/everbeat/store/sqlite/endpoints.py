"""Endpoint verbs of the SQLite store: nothing differs from the other dialect."""

from __future__ import annotations

from everbeat.store.endpoint_verbs import EndpointVerbs
from everbeat.store.sqlite.base import SqliteBase


class SqliteEndpoints(EndpointVerbs, SqliteBase):
    pass

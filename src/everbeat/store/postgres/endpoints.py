"""Endpoint verbs of the PostgreSQL store: nothing differs from the other dialect."""

from __future__ import annotations

from everbeat.store.endpoint_verbs import EndpointVerbs
from everbeat.store.postgres.base import PostgresBase


class PostgresEndpoints(EndpointVerbs, PostgresBase):
    pass

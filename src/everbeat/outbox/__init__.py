"""Submits tasks in the transaction of an application: through an outbox table, or directly in a shared PostgreSQL database."""

from everbeat.outbox.writer import Outbox, SharedDatabase

__all__ = ["Outbox", "SharedDatabase"]

"""The columns of tables of tasks."""

from __future__ import annotations

from everbeat.cli.output import Column

TASK_COLUMNS = [
    Column("ID", "id"),
    Column("TYPE", "type"),
    Column("QUEUE", "queue"),
    Column("STATE", "state"),
    Column("ATTEMPT", lambda item: f"{item['attempt']}/{item['max_attempts']}"),
    Column("CREATED", "created_at"),
    Column("ERROR", lambda item: (item["error"] or {}).get("message")),
]

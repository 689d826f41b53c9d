-- Pauses of a queue, of a tenant (without a queue) and of everything (without a tenant). A pause is kept after its end, so that it
-- can explain the ticks that it skipped. Processes of the previous version can keep running, but they do not know pauses.

CREATE TABLE pauses (
  id BLOB PRIMARY KEY,
  tenant_id BLOB,
  queue TEXT,
  note TEXT,
  paused_by TEXT NOT NULL,
  since_at INTEGER NOT NULL,
  until_at INTEGER,
  ended_at INTEGER,
  ended_by TEXT,
  CHECK (queue IS NULL OR tenant_id IS NOT NULL)
);

CREATE UNIQUE INDEX pauses_active ON pauses (coalesce(tenant_id, x'00'), coalesce(queue, '')) WHERE ended_at IS NULL;
CREATE INDEX pauses_since ON pauses (since_at);

-- Tasks of a manual trigger run even while their queue is paused.
CREATE INDEX tasks_triggered ON tasks (queue, run_at, id) WHERE state = 'ready' AND origin = 'trigger';

-- Bulk operations: an action on all schedules or tasks that match a filter. Processes of the previous version can keep running.

CREATE TABLE bulk_operations (
  id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL,
  subject TEXT NOT NULL CHECK (subject IN ('schedules', 'tasks')),
  action TEXT NOT NULL CHECK (action IN ('pause', 'resume', 'trigger', 'delete', 'cancel', 'retry')),
  filter TEXT NOT NULL,
  note TEXT,
  actor TEXT NOT NULL,
  key_id BLOB,
  matched INTEGER NOT NULL,
  done INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  state TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'cancelled', 'failed')),
  errors TEXT NOT NULL DEFAULT '[]',
  position TEXT,
  page TEXT NOT NULL DEFAULT '[]',
  owner BLOB,
  lease_until INTEGER,
  created_at INTEGER NOT NULL,
  finished_at INTEGER
);

CREATE INDEX bulk_operations_running ON bulk_operations (created_at) WHERE state = 'running';
CREATE INDEX bulk_operations_of_tenant ON bulk_operations (tenant_id, created_at, id);

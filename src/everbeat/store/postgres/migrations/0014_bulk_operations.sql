-- Bulk operations: an action on all schedules or tasks that match a filter. Nodes of the previous version can keep running.

CREATE TABLE bulk_operations (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  subject text NOT NULL CHECK (subject IN ('schedules', 'tasks')),
  action text NOT NULL CHECK (action IN ('pause', 'resume', 'trigger', 'delete', 'cancel', 'retry')),
  filter text NOT NULL,
  note text,
  actor text NOT NULL,
  key_id uuid,
  matched bigint NOT NULL,
  done bigint NOT NULL DEFAULT 0,
  failed bigint NOT NULL DEFAULT 0,
  state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'cancelled', 'failed')),
  errors text NOT NULL DEFAULT '[]',
  position text,
  page text NOT NULL DEFAULT '[]',
  owner uuid,
  lease_until timestamptz,
  created_at timestamptz NOT NULL,
  finished_at timestamptz
);

CREATE INDEX bulk_operations_running ON bulk_operations (created_at) WHERE state = 'running';
CREATE INDEX bulk_operations_of_tenant ON bulk_operations (tenant_id, created_at, id);

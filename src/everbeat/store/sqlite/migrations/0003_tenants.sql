-- Tenants with weights and quotas, API keys, the audit log, fair keys, payloads in a blob store. Processes of the previous
-- version can keep running.

CREATE TABLE tenants (
  id BLOB PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  weight REAL NOT NULL DEFAULT 1 CHECK (weight > 0),
  max_schedules INTEGER CHECK (max_schedules >= 0),
  max_ready INTEGER CHECK (max_ready >= 0),
  max_running INTEGER CHECK (max_running >= 0),
  submits_per_second REAL CHECK (submits_per_second > 0),
  max_payload_bytes INTEGER CHECK (max_payload_bytes >= 0),
  revision INTEGER NOT NULL DEFAULT 1,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

-- The default tenant, for installations that do not use tenants. It has no limits unless they are set.
INSERT INTO tenants (id, name, created_at, updated_at)
VALUES (zeroblob(16), 'default', unixepoch() * 1000000, unixepoch() * 1000000);

-- Only the hash of a key is stored. A fleet key is valid for every tenant.
CREATE TABLE api_keys (
  id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL REFERENCES tenants (id),
  name TEXT NOT NULL,
  hash BLOB NOT NULL UNIQUE,
  hint TEXT NOT NULL,
  scopes TEXT NOT NULL,
  is_fleet INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  last_used_at INTEGER,
  revoked_at INTEGER
) STRICT;

CREATE INDEX api_keys_of_tenant ON api_keys (tenant_id, id);

-- Who changed what. Rows are only inserted, never changed or deleted.
CREATE TABLE audit_log (
  id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL,
  at INTEGER NOT NULL,
  actor TEXT NOT NULL,
  key_id BLOB,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  request_id TEXT,
  address TEXT
) STRICT;

CREATE INDEX audit_log_of_tenant ON audit_log (tenant_id, at, id);
CREATE INDEX audit_log_by_time ON audit_log (at, id);

CREATE TRIGGER audit_log_keeps BEFORE UPDATE ON audit_log BEGIN
  SELECT raise(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_log_keeps_all BEFORE DELETE ON audit_log BEGIN
  SELECT raise(ABORT, 'the audit log is append-only');
END;

ALTER TABLE tasks ADD COLUMN fair_key TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN payload_ref TEXT;
ALTER TABLE task_history ADD COLUMN fair_key TEXT NOT NULL DEFAULT '';
ALTER TABLE task_history ADD COLUMN payload_ref TEXT;
ALTER TABLE dead_letters ADD COLUMN fair_key TEXT NOT NULL DEFAULT '';
ALTER TABLE dead_letters ADD COLUMN payload_ref TEXT;

-- Claims take tasks from flows: (tenant, priority, fair key, type) of a queue, each in order of time. A loose index scan finds
-- the flows.
DROP INDEX tasks_ready;
CREATE INDEX tasks_ready ON tasks (queue, tenant_id, priority, fair_key, type, run_at, id) WHERE state = 'ready';
-- Differs from postgres: tasks_running keeps lease_until, so a separate index counts the running tasks of a tenant.
CREATE INDEX tasks_running_of_tenant ON tasks (tenant_id) WHERE state = 'running';
-- A list of a tenant's tasks must not read the tasks of other tenants.
CREATE INDEX tasks_of_tenant ON tasks (tenant_id, id);
CREATE INDEX task_history_of_tenant ON task_history (tenant_id, id);
-- Finds the payloads of the blob store that are still in use.
CREATE INDEX tasks_payload_refs ON tasks (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX task_history_payload_refs ON task_history (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX dead_letters_payload_refs ON dead_letters (payload_ref) WHERE payload_ref IS NOT NULL;

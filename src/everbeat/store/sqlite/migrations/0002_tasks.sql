-- The task engine: leases with deadlines, attempts, logs, dead letters, idempotency keys. Processes of the previous version can
-- keep running.

ALTER TABLE tasks ADD COLUMN schedule_name TEXT;
ALTER TABLE tasks ADD COLUMN traceparent TEXT;
ALTER TABLE tasks ADD COLUMN lease_seconds REAL NOT NULL DEFAULT 30;
ALTER TABLE tasks ADD COLUMN deadline_at INTEGER;
ALTER TABLE tasks ADD COLUMN first_started_at INTEGER;
ALTER TABLE tasks ADD COLUMN progress_fraction REAL;
ALTER TABLE tasks ADD COLUMN progress_message TEXT;
ALTER TABLE tasks ADD COLUMN log_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN error TEXT;

-- Differs from postgres: tasks_running keeps lease_until, because SQLite has no HOT updates that it would prevent.
DROP INDEX tasks_ready;
DROP INDEX tasks_of_schedule;
CREATE INDEX tasks_ready ON tasks (queue, tenant_id, priority, run_at, id) WHERE state = 'ready';
CREATE INDEX tasks_scheduled ON tasks (run_at) WHERE state = 'scheduled';
CREATE INDEX tasks_held ON tasks (schedule_id, scheduled_for, id) WHERE state = 'held';
CREATE INDEX tasks_of_schedule ON tasks (schedule_id, id) WHERE schedule_id IS NOT NULL;

ALTER TABLE task_history ADD COLUMN schedule_name TEXT;
ALTER TABLE task_history ADD COLUMN traceparent TEXT;
ALTER TABLE task_history ADD COLUMN retry TEXT NOT NULL DEFAULT '{}';
ALTER TABLE task_history ADD COLUMN timeout_seconds REAL NOT NULL DEFAULT 3600;
ALTER TABLE task_history ADD COLUMN progress_fraction REAL;
ALTER TABLE task_history ADD COLUMN progress_message TEXT;
ALTER TABLE task_history ADD COLUMN result TEXT;
ALTER TABLE task_history ADD COLUMN error TEXT;
ALTER TABLE task_history ADD COLUMN reason TEXT;
ALTER TABLE task_history ADD COLUMN outcome TEXT;

CREATE INDEX task_history_executions ON task_history (schedule_id, id) WHERE schedule_id IS NOT NULL;

-- Attempts that did not end their task. The attempt that ended it is in task_history.
CREATE TABLE attempts (
  task_id BLOB NOT NULL,
  tenant_id BLOB NOT NULL,
  fence INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  worker TEXT,
  started_at INTEGER NOT NULL,
  ended_at INTEGER NOT NULL,
  outcome TEXT NOT NULL CHECK (outcome IN ('completed', 'failed', 'lost', 'timeout', 'released', 'cancelled')),
  error TEXT,
  PRIMARY KEY (task_id, fence, ended_at)
) STRICT;

CREATE INDEX attempts_by_time ON attempts (ended_at);

CREATE TABLE task_log (
  task_id BLOB NOT NULL,
  id BLOB NOT NULL,
  tenant_id BLOB NOT NULL,
  at INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  worker TEXT,
  text TEXT NOT NULL,
  PRIMARY KEY (task_id, id, at)
) STRICT;

CREATE INDEX task_log_by_time ON task_log (at);

CREATE TABLE dead_letters (
  task_id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL,
  queue TEXT NOT NULL,
  type TEXT NOT NULL,
  target TEXT NOT NULL,
  payload TEXT NOT NULL,
  origin TEXT NOT NULL,
  schedule_id BLOB,
  schedule_name TEXT,
  scheduled_for INTEGER,
  priority INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  retry TEXT NOT NULL,
  timeout_seconds REAL NOT NULL,
  labels TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  reason TEXT NOT NULL,
  error TEXT,
  worker TEXT,
  created_at INTEGER NOT NULL,
  died_at INTEGER NOT NULL,
  replayed_at INTEGER,
  replayed_as BLOB,
  replays INTEGER NOT NULL DEFAULT 0,
  purged_at INTEGER
) STRICT;

CREATE INDEX dead_letters_newest ON dead_letters (tenant_id, died_at, task_id) WHERE purged_at IS NULL;

CREATE TABLE task_keys (
  tenant_id BLOB NOT NULL,
  key TEXT NOT NULL,
  task_id BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, key)
) STRICT;

CREATE INDEX task_keys_expiry ON task_keys (expires_at);

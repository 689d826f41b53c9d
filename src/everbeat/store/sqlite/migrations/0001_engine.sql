-- Schedules, the ledger, ownership, and the tasks that are created by firings.
-- Differs from postgres: times are microseconds since 1970 and ids are 16-byte blobs, because SQLite has neither type. The
-- ledger and the history are plain tables, because SQLite has no partitions. Retention deletes rows in small batches.

CREATE TABLE schedules (
  id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL,
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  partition INTEGER NOT NULL CHECK (partition BETWEEN 0 AND 255),
  trigger_kind TEXT NOT NULL CHECK (trigger_kind IN ('cron', 'every', 'rrule', 'at')),
  trigger_text TEXT NOT NULL,
  timezone TEXT NOT NULL,
  anchor INTEGER,
  dst_gap TEXT NOT NULL CHECK (dst_gap IN ('after', 'skip')),
  dst_fold TEXT NOT NULL CHECK (dst_fold IN ('first', 'second', 'both')),
  calendars TEXT,
  starts_at INTEGER,
  ends_at INTEGER,
  target TEXT NOT NULL,
  target_kind TEXT NOT NULL,
  queue TEXT NOT NULL,
  task_type TEXT NOT NULL,
  payload TEXT NOT NULL,
  overlap TEXT NOT NULL CHECK (overlap IN ('skip', 'queue', 'cancel_previous', 'allow')),
  max_concurrent INTEGER,
  concurrency INTEGER NOT NULL CHECK (concurrency >= 1),
  catch_up TEXT NOT NULL CHECK (catch_up IN ('latest', 'all', 'none')),
  misfire_grace_seconds REAL NOT NULL,
  jitter_seconds REAL NOT NULL,
  priority INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  retry TEXT NOT NULL,
  timeout_seconds REAL NOT NULL,
  labels TEXT NOT NULL,
  enabled INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('active', 'paused', 'finished')),
  revision INTEGER NOT NULL,
  cursor_at INTEGER NOT NULL,
  rule_at INTEGER NOT NULL,
  next_tick_at INTEGER,
  due_at INTEGER,
  last_tick_at INTEGER,
  fault TEXT,
  note TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  UNIQUE (tenant_id, name),
  CHECK (status <> 'active' OR (next_tick_at IS NOT NULL AND due_at IS NOT NULL))
) STRICT;

CREATE INDEX schedules_due ON schedules (partition, due_at) WHERE status = 'active';
CREATE INDEX schedules_faulty ON schedules (tenant_id, id) WHERE fault IS NOT NULL;
CREATE INDEX schedules_with_calendars ON schedules (tenant_id) WHERE calendars IS NOT NULL;

CREATE TABLE past_rules (
  schedule_id BLOB NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER NOT NULL,
  rule TEXT NOT NULL,
  PRIMARY KEY (schedule_id, until)
) STRICT;

CREATE TABLE ticks (
  schedule_id BLOB NOT NULL,
  scheduled_for INTEGER NOT NULL,
  tenant_id BLOB NOT NULL,
  outcome TEXT NOT NULL CHECK (outcome IN ('fired', 'skipped')),
  reason TEXT CHECK (reason IN ('overlap', 'misfire', 'paused', 'calendar', 'dst_gap', 'quota', 'ended')),
  task_id BLOB,
  fired_at INTEGER NOT NULL,
  node BLOB,
  epoch INTEGER,
  until INTEGER,
  count INTEGER NOT NULL DEFAULT 1 CHECK (count >= 1),
  PRIMARY KEY (schedule_id, scheduled_for),
  CHECK ((outcome = 'fired') = (reason IS NULL)),
  CHECK ((outcome = 'fired') = (task_id IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- Finds the skipped range that contains a given time without reading the ticks before it.
CREATE INDEX ticks_ranges ON ticks (schedule_id, until) WHERE until IS NOT NULL;

-- Differs from postgres: retention finds old rows with this index, because there are no month tables to drop.
CREATE INDEX ticks_by_time ON ticks (scheduled_for);

CREATE TABLE tasks (
  id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL,
  partition INTEGER NOT NULL CHECK (partition BETWEEN 0 AND 255),
  queue TEXT NOT NULL,
  type TEXT NOT NULL,
  target TEXT NOT NULL,
  payload TEXT NOT NULL,
  origin TEXT NOT NULL CHECK (origin IN ('submit', 'tick', 'trigger', 'backfill', 'replay')),
  schedule_id BLOB,
  scheduled_for INTEGER,
  run_at INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('held', 'scheduled', 'ready', 'running')),
  attempt INTEGER NOT NULL DEFAULT 0,
  max_attempts INTEGER NOT NULL,
  retry TEXT NOT NULL,
  timeout_seconds REAL NOT NULL,
  labels TEXT NOT NULL,
  lease_owner TEXT,
  lease_until INTEGER,
  fence INTEGER NOT NULL DEFAULT 0,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  CHECK ((state = 'running') = (lease_until IS NOT NULL))
) STRICT;

CREATE INDEX tasks_ready ON tasks (queue, priority, run_at, id) WHERE state = 'ready';
CREATE INDEX tasks_running ON tasks (lease_until) WHERE state = 'running';
CREATE INDEX tasks_of_schedule ON tasks (schedule_id) WHERE schedule_id IS NOT NULL;

CREATE TABLE task_history (
  id BLOB NOT NULL,
  tenant_id BLOB NOT NULL,
  queue TEXT NOT NULL,
  type TEXT NOT NULL,
  target TEXT NOT NULL,
  payload TEXT NOT NULL,
  origin TEXT NOT NULL,
  schedule_id BLOB,
  scheduled_for INTEGER,
  run_at INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('completed', 'failed', 'dead', 'cancelled')),
  attempt INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  labels TEXT NOT NULL,
  worker TEXT,
  fence INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  finished_at INTEGER NOT NULL,
  PRIMARY KEY (id, finished_at)
) STRICT;

CREATE INDEX task_history_of_schedule ON task_history (schedule_id, scheduled_for) WHERE schedule_id IS NOT NULL;

CREATE INDEX task_history_by_time ON task_history (finished_at);

CREATE TABLE partitions (
  partition INTEGER PRIMARY KEY CHECK (partition BETWEEN 0 AND 255),
  owner BLOB,
  epoch INTEGER NOT NULL DEFAULT 0,
  lease_until INTEGER,
  lease_seconds REAL NOT NULL DEFAULT 0
) STRICT;

WITH RECURSIVE numbers (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM numbers WHERE n < 255)
INSERT INTO partitions (partition) SELECT n FROM numbers;

CREATE TABLE nodes (
  id BLOB PRIMARY KEY,
  name TEXT NOT NULL,
  roles TEXT NOT NULL,
  version TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  seen_at INTEGER NOT NULL,
  lease_seconds REAL NOT NULL,
  lag_seconds REAL,
  fired_per_second REAL
) STRICT;

CREATE TABLE calendars (
  tenant_id BLOB NOT NULL,
  name TEXT NOT NULL,
  revision INTEGER NOT NULL,
  definition TEXT NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, name)
) STRICT;

CREATE TABLE idempotent_answers (
  tenant_id BLOB NOT NULL,
  key TEXT NOT NULL,
  fingerprint BLOB NOT NULL,
  status INTEGER NOT NULL,
  body BLOB NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, key)
) STRICT;

CREATE INDEX idempotent_answers_expiry ON idempotent_answers (expires_at);

-- The task engine: leases with deadlines, attempts, logs, dead letters, idempotency keys. Nodes of the previous version can
-- keep running.

ALTER TABLE tasks
  ADD COLUMN schedule_name text,
  ADD COLUMN traceparent text,
  ADD COLUMN lease_seconds double precision NOT NULL DEFAULT 30,
  ADD COLUMN deadline_at timestamptz,
  ADD COLUMN first_started_at timestamptz,
  ADD COLUMN progress_fraction double precision,
  ADD COLUMN progress_message text,
  ADD COLUMN log_bytes integer NOT NULL DEFAULT 0,
  ADD COLUMN error text;

-- tasks_running without lease_until, so that heartbeats are HOT updates. tasks_ready with the tenant, so that a claim can
-- select one tenant.
DROP INDEX tasks_ready;
DROP INDEX tasks_running;
DROP INDEX tasks_of_schedule;
CREATE INDEX tasks_ready ON tasks (queue, tenant_id, priority, run_at, id) WHERE state = 'ready';
CREATE INDEX tasks_running ON tasks (id) WHERE state = 'running';
CREATE INDEX tasks_scheduled ON tasks (run_at) WHERE state = 'scheduled';
CREATE INDEX tasks_held ON tasks (schedule_id, scheduled_for, id) WHERE state = 'held';
CREATE INDEX tasks_of_schedule ON tasks (schedule_id, id) WHERE schedule_id IS NOT NULL;

ALTER TABLE task_history
  ADD COLUMN schedule_name text,
  ADD COLUMN traceparent text,
  ADD COLUMN retry text NOT NULL DEFAULT '{}',
  ADD COLUMN timeout_seconds double precision NOT NULL DEFAULT 3600,
  ADD COLUMN progress_fraction double precision,
  ADD COLUMN progress_message text,
  ADD COLUMN result text,
  ADD COLUMN error text,
  ADD COLUMN reason text,
  ADD COLUMN outcome text;

CREATE INDEX task_history_executions ON task_history (schedule_id, id) WHERE schedule_id IS NOT NULL;

-- Attempts that did not end their task. The attempt that ended it is in task_history.
CREATE TABLE attempts (
  task_id uuid NOT NULL,
  tenant_id uuid NOT NULL,
  fence bigint NOT NULL,
  attempt integer NOT NULL,
  worker text,
  started_at timestamptz NOT NULL,
  ended_at timestamptz NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('completed', 'failed', 'lost', 'timeout', 'released', 'cancelled')),
  error text,
  PRIMARY KEY (task_id, fence, ended_at)
) PARTITION BY RANGE (ended_at);

CREATE TABLE task_log (
  task_id uuid NOT NULL,
  id uuid NOT NULL,
  tenant_id uuid NOT NULL,
  at timestamptz NOT NULL,
  attempt integer NOT NULL,
  worker text,
  text text NOT NULL,
  PRIMARY KEY (task_id, id, at)
) PARTITION BY RANGE (at);

CREATE TABLE dead_letters (
  task_id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  queue text NOT NULL,
  type text NOT NULL,
  target text NOT NULL,
  payload text NOT NULL,
  origin text NOT NULL,
  schedule_id uuid,
  schedule_name text,
  scheduled_for timestamptz,
  priority integer NOT NULL,
  max_attempts integer NOT NULL,
  retry text NOT NULL,
  timeout_seconds double precision NOT NULL,
  labels text NOT NULL,
  attempt integer NOT NULL,
  reason text NOT NULL,
  error text,
  worker text,
  created_at timestamptz NOT NULL,
  died_at timestamptz NOT NULL,
  replayed_at timestamptz,
  replayed_as uuid,
  replays integer NOT NULL DEFAULT 0,
  purged_at timestamptz
);

CREATE INDEX dead_letters_newest ON dead_letters (tenant_id, died_at, task_id) WHERE purged_at IS NULL;

CREATE TABLE task_keys (
  tenant_id uuid NOT NULL,
  key text NOT NULL,
  task_id uuid NOT NULL,
  fingerprint bytea NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, key)
);

CREATE INDEX task_keys_expiry ON task_keys (expires_at);

CREATE OR REPLACE FUNCTION everbeat_month_ensure(month timestamptz) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  parent text;
  child text;
  first timestamptz := date_trunc('month', month, 'UTC');
  next timestamptz := date_trunc('month', date_trunc('month', month, 'UTC') + interval '32 days', 'UTC');
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext('everbeat_month_ensure'));
  FOREACH parent IN ARRAY ARRAY['ticks', 'task_history', 'attempts', 'task_log'] LOOP
    child := parent || '_' || to_char(first AT TIME ZONE 'UTC', 'YYYY_MM');
    IF to_regclass(child) IS NULL THEN
      -- Created separately and then attached, because ATTACH PARTITION does not block reads and writes of the other months.
      EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', child, parent);
      EXECUTE format('ALTER TABLE %I SET (autovacuum_vacuum_insert_scale_factor = 0.1)', child);
      EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child, first, next);
      RETURN NEXT child;
    END IF;
  END LOOP;
END
$$;

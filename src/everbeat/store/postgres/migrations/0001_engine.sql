-- Schedules, the ledger, ownership, and the tasks that are created by firings.

CREATE TABLE schedules (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  name text COLLATE "C" NOT NULL,  -- paging compares names bytewise, regardless of the locale of the database
  description text NOT NULL,
  partition smallint NOT NULL CHECK (partition BETWEEN 0 AND 255),
  trigger_kind text NOT NULL CHECK (trigger_kind IN ('cron', 'every', 'rrule', 'at')),
  trigger_text text NOT NULL,
  timezone text NOT NULL,
  anchor timestamptz,
  dst_gap text NOT NULL CHECK (dst_gap IN ('after', 'skip')),
  dst_fold text NOT NULL CHECK (dst_fold IN ('first', 'second', 'both')),
  calendars text,
  starts_at timestamptz,
  ends_at timestamptz,
  target text NOT NULL,
  target_kind text NOT NULL,
  queue text NOT NULL,
  task_type text NOT NULL,
  payload text NOT NULL,
  overlap text NOT NULL CHECK (overlap IN ('skip', 'queue', 'cancel_previous', 'allow')),
  max_concurrent integer,
  concurrency integer NOT NULL CHECK (concurrency >= 1),
  catch_up text NOT NULL CHECK (catch_up IN ('latest', 'all', 'none')),
  misfire_grace_seconds double precision NOT NULL,
  jitter_seconds double precision NOT NULL,
  priority integer NOT NULL,
  max_attempts integer NOT NULL,
  retry text NOT NULL,
  timeout_seconds double precision NOT NULL,
  labels text NOT NULL,
  enabled boolean NOT NULL,
  status text NOT NULL CHECK (status IN ('active', 'paused', 'finished')),
  revision integer NOT NULL,
  cursor_at timestamptz NOT NULL,
  rule_at timestamptz NOT NULL,
  next_tick_at timestamptz,
  due_at timestamptz,
  last_tick_at timestamptz,
  fault text,
  note text,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  UNIQUE (tenant_id, name),
  CHECK (status <> 'active' OR (next_tick_at IS NOT NULL AND due_at IS NOT NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX schedules_due ON schedules (partition, due_at) WHERE status = 'active';
CREATE INDEX schedules_faulty ON schedules (tenant_id, id) WHERE fault IS NOT NULL;
CREATE INDEX schedules_with_calendars ON schedules (tenant_id) WHERE calendars IS NOT NULL;

CREATE TABLE past_rules (
  schedule_id uuid NOT NULL,
  since timestamptz NOT NULL,
  until timestamptz NOT NULL,
  rule text NOT NULL,
  PRIMARY KEY (schedule_id, until)
);

CREATE TABLE ticks (
  schedule_id uuid NOT NULL,
  scheduled_for timestamptz NOT NULL,
  tenant_id uuid NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('fired', 'skipped')),
  reason text CHECK (reason IN ('overlap', 'misfire', 'paused', 'calendar', 'dst_gap', 'quota', 'ended')),
  task_id uuid,
  fired_at timestamptz NOT NULL,
  node uuid,
  epoch bigint,
  until timestamptz,
  count bigint NOT NULL DEFAULT 1 CHECK (count >= 1),
  PRIMARY KEY (schedule_id, scheduled_for),
  CHECK ((outcome = 'fired') = (reason IS NULL)),
  CHECK ((outcome = 'fired') = (task_id IS NOT NULL))
) PARTITION BY RANGE (scheduled_for);

-- Finds the skipped range that contains a given time without reading the ticks before it.
CREATE INDEX ticks_ranges ON ticks (schedule_id, until) WHERE until IS NOT NULL;

CREATE TABLE tasks (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  partition smallint NOT NULL CHECK (partition BETWEEN 0 AND 255),
  queue text NOT NULL,
  type text NOT NULL,
  target text NOT NULL,
  payload text NOT NULL,
  origin text NOT NULL CHECK (origin IN ('submit', 'tick', 'trigger', 'backfill', 'replay')),
  schedule_id uuid,
  scheduled_for timestamptz,
  run_at timestamptz NOT NULL,
  priority integer NOT NULL,
  state text NOT NULL CHECK (state IN ('held', 'scheduled', 'ready', 'running')),
  attempt integer NOT NULL DEFAULT 0,
  max_attempts integer NOT NULL,
  retry text NOT NULL,
  timeout_seconds double precision NOT NULL,
  labels text NOT NULL,
  lease_owner text,
  lease_until timestamptz,
  fence bigint NOT NULL DEFAULT 0,
  cancel_requested boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL,
  started_at timestamptz,
  CHECK ((state = 'running') = (lease_until IS NOT NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX tasks_ready ON tasks (queue, priority, run_at, id) WHERE state = 'ready';
CREATE INDEX tasks_running ON tasks (lease_until) WHERE state = 'running';
CREATE INDEX tasks_of_schedule ON tasks (schedule_id) WHERE schedule_id IS NOT NULL;

CREATE TABLE task_history (
  id uuid NOT NULL,
  tenant_id uuid NOT NULL,
  queue text NOT NULL,
  type text NOT NULL,
  target text NOT NULL,
  payload text NOT NULL,
  origin text NOT NULL,
  schedule_id uuid,
  scheduled_for timestamptz,
  run_at timestamptz NOT NULL,
  priority integer NOT NULL,
  state text NOT NULL CHECK (state IN ('completed', 'failed', 'dead', 'cancelled')),
  attempt integer NOT NULL,
  max_attempts integer NOT NULL,
  labels text NOT NULL,
  worker text,
  fence bigint NOT NULL,
  created_at timestamptz NOT NULL,
  started_at timestamptz,
  finished_at timestamptz NOT NULL,
  PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);

CREATE INDEX task_history_of_schedule ON task_history (schedule_id, scheduled_for) WHERE schedule_id IS NOT NULL;

CREATE TABLE partitions (
  partition smallint PRIMARY KEY CHECK (partition BETWEEN 0 AND 255),
  owner uuid,
  epoch bigint NOT NULL DEFAULT 0,
  lease_until timestamptz,
  lease_seconds double precision NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

INSERT INTO partitions (partition) SELECT generate_series(0, 255);

CREATE TABLE nodes (
  id uuid PRIMARY KEY,
  name text NOT NULL,
  roles text NOT NULL,
  version text NOT NULL,
  started_at timestamptz NOT NULL,
  seen_at timestamptz NOT NULL,
  lease_seconds double precision NOT NULL,
  lag_seconds double precision,
  fired_per_second double precision
) WITH (fillfactor = 50);

CREATE TABLE calendars (
  tenant_id uuid NOT NULL,
  name text COLLATE "C" NOT NULL,
  revision integer NOT NULL,
  definition text NOT NULL,
  updated_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, name)
);

CREATE TABLE idempotent_answers (
  tenant_id uuid NOT NULL,
  key text NOT NULL,
  fingerprint bytea NOT NULL,
  status integer NOT NULL,
  body bytea NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, key)
);

CREATE INDEX idempotent_answers_expiry ON idempotent_answers (expires_at);

CREATE FUNCTION everbeat_month_ensure(month timestamptz) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  parent text;
  child text;
  first timestamptz := date_trunc('month', month, 'UTC');
  next timestamptz := date_trunc('month', date_trunc('month', month, 'UTC') + interval '32 days', 'UTC');
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext('everbeat_month_ensure'));
  FOREACH parent IN ARRAY ARRAY['ticks', 'task_history'] LOOP
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

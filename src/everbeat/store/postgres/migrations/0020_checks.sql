-- Checks: jobs that run elsewhere and report by pings, with their ledger, their pings and the changes of their state. Nodes of the
-- previous version can keep running.

CREATE TABLE checks (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  name text NOT NULL,
  description text NOT NULL,
  labels text NOT NULL,
  trigger_kind text NOT NULL CHECK (trigger_kind IN ('cron', 'every')),
  trigger_text text NOT NULL,
  timezone text NOT NULL,
  grace_seconds double precision NOT NULL CHECK (grace_seconds > 0),
  timeout_seconds double precision CHECK (timeout_seconds > 0),
  token text NOT NULL UNIQUE,
  old_token text UNIQUE,
  old_token_until timestamptz,
  state text NOT NULL CHECK (state IN ('new', 'up', 'down', 'paused')),
  state_since timestamptz NOT NULL,
  reason text CHECK (reason IN ('missed', 'failed', 'unfinished')),
  cursor_at timestamptz,
  expected_at timestamptz,
  due_at timestamptz,
  last_ping_at timestamptz,
  last_duration_seconds double precision,
  ping_count bigint NOT NULL,
  runs text NOT NULL,
  revision integer NOT NULL,
  version bigint NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  UNIQUE (tenant_id, name)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX checks_due ON checks (due_at) WHERE due_at IS NOT NULL;
-- Alert rules look for checks that are down.
CREATE INDEX checks_down ON checks (tenant_id, state_since) WHERE state = 'down';

CREATE TABLE check_pings (
  check_id uuid NOT NULL,
  number bigint NOT NULL,
  tenant_id uuid NOT NULL,
  at timestamptz NOT NULL,
  kind text NOT NULL CHECK (kind IN ('success', 'start', 'fail', 'log')),
  rid uuid,
  exit_status integer,
  method text NOT NULL,
  address text,
  user_agent text,
  body bytea,
  body_bytes integer NOT NULL,
  duration_seconds double precision,
  PRIMARY KEY (check_id, number)
);

CREATE INDEX check_pings_by_time ON check_pings (at);

CREATE TABLE check_ticks (
  check_id uuid NOT NULL,
  scheduled_for timestamptz NOT NULL,
  tenant_id uuid NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('pinged', 'failed', 'missed', 'skipped')),
  reason text,
  recorded_at timestamptz NOT NULL,
  ping_number bigint,
  until timestamptz,
  count bigint NOT NULL,
  PRIMARY KEY (check_id, scheduled_for)
);

CREATE INDEX check_ticks_of_tenant ON check_ticks (tenant_id, scheduled_for);
CREATE INDEX check_ticks_by_time ON check_ticks (scheduled_for);

-- `number` is the version of the check after the transition.
CREATE TABLE check_transitions (
  check_id uuid NOT NULL,
  number bigint NOT NULL,
  tenant_id uuid NOT NULL,
  at timestamptz NOT NULL,
  from_state text NOT NULL,
  to_state text NOT NULL,
  reason text,
  scheduled_for timestamptz,
  ping_number bigint,
  PRIMARY KEY (check_id, number)
);

CREATE INDEX check_transitions_by_time ON check_transitions (at);
